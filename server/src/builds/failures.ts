/** Ends of a queued build other than an image. */

/** A failed build with an error text for its owner. */
export class BuildFailed extends Error {}

/** The build's row was deleted, so nothing needs the build any more. */
export class BuildDropped extends Error {}

/** The error's message as a sentence for the build's owner. */
export function sentence(error: unknown): string {
  const { message } = error as Error;
  return `${message.charAt(0).toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? "" : "."}`;
}
