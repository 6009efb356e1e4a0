/** A failed pull. The message is a clause that follows the image's reference. */
export class RegistryError extends Error {
  override readonly name = "RegistryError";
}
