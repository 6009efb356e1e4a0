/** Reason why an image is not pulled, for the caller: a clause that follows the image's reference. */
export class RegistryError extends Error {
  override readonly name = "RegistryError";
}
