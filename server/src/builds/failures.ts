/** Ends of a queued build other than an image. */

/** A reason to end a build that its owner may read. */
export class BuildFailed extends Error {}

/** The build's row is gone, and with it everything it was for. */
export class Dropped extends Error {}

/** The error's message as a sentence for the build's owner. */
export function sentence(error: unknown): string {
  const { message } = error as Error;
  return `${message.charAt(0).toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? "" : "."}`;
}
