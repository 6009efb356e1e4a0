/** Limits the size of tool results for a model. */

export const resultMaxBytes = 64 * 1024;
const halfBytes = resultMaxBytes / 2;

export function isWithin(text: string): boolean {
  return Buffer.byteLength(text) <= resultMaxBytes;
}

/** Shortens a long text. Keeps the beginning and the end, because they matter more than the middle. */
export function cutOff(text: string): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= resultMaxBytes) return text;
  return joinEnds(bytes, bytes, bytes.length - resultMaxBytes);
}

/**
 * Returns the first half of a result from `head`, and the second half from the end of `tail`. No character is cut
 * through. `leftOutBytes` is undefined if the length is not known.
 */
export function joinEnds(head: Buffer, tail: Buffer, leftOutBytes: number | undefined): string {
  const first = new TextDecoder().decode(head.subarray(0, halfBytes), { stream: true });
  let from = Math.max(0, tail.length - halfBytes);
  while (from < tail.length && (tail[from]! & 0xc0) === 0x80) from += 1;
  const last = new TextDecoder().decode(tail.subarray(from));
  const gone = leftOutBytes === undefined ? "the rest" : `${leftOutBytes} bytes`;
  return `${first}\n[cut off: ${gone} left out]\n${last}`.trimEnd();
}

/** Blanks the secret in a text. A server may repeat the secret, which must reach neither the model nor the log. */
export function hide(text: string, secret: string | undefined): string {
  return secret !== undefined && secret.length >= 4 ? text.replaceAll(secret, "[secret]") : text;
}
