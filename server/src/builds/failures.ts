/** Errors that end a queued build without an image. */

/** A failed build with an error text for its owner. */
export class BuildFailed extends Error {}

/** Thrown when the build's row was deleted, so that its result is not needed. */
export class BuildDropped extends Error {}

/** Returns the error's message as a sentence for the build's owner. */
export function sentence(error: unknown): string {
  const { message } = error as Error;
  return `${message.charAt(0).toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? "" : "."}`;
}
