/**
 * Decodes base64 of requests strictly. Node's decoder silently skips invalid characters and would lose a caller's
 * bytes. Comparing the expected length with the decoded one finds such characters at no cost.
 */
import { invalidField } from "../sandboxes/errors.ts";

export function decode(text: string, field: string): Buffer {
  const bytes = Buffer.from(text, "base64");
  if (bytes.length === decodedLength(text)) return bytes;
  // Some tools wrap lines; every other character outside the alphabet is an error.
  const unwrapped = text.replaceAll(/[\r\n]/g, "");
  if (unwrapped.length !== text.length && bytes.length === decodedLength(unwrapped)) return bytes;
  throw invalidField(field, "is not valid base64.");
}

/** Upper bound of the decoded bytes, without decoding. */
export function sizeOfDecoded(text: string): number {
  return Buffer.byteLength(text.replaceAll(/[\r\n]/g, ""), "base64");
}

/** Number of bytes that base64 of this length encodes; NaN if no base64 has such a length. */
function decodedLength(text: string): number {
  let characters = text.length;
  while (characters > 0 && text.length - characters < 2 && text[characters - 1] === "=") characters -= 1;
  const rest = characters % 4;
  if (rest === 1) return Number.NaN;
  return Math.floor(characters / 4) * 3 + (rest === 0 ? 0 : rest - 1);
}
