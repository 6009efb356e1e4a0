/**
 * Ids that callers see: a prefix and 20 characters of `[a-z0-9]`, about 103 random bits. The alphabet is lower-case
 * because sandbox ids become part of host names.
 */
import { randomBytes } from "node:crypto";

const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789";

export function newId(prefix: string, length = 20): string {
  return prefix + randomText(alphabet, length);
}

/**
 * Returns uniformly distributed characters of an alphabet. Bytes at or above the largest multiple of the alphabet's
 * size are discarded.
 */
export function randomText(from: string, length: number): string {
  const limit = 256 - (256 % from.length);
  let text = "";
  while (text.length < length) {
    for (const byte of randomBytes(length)) {
      if (byte < limit && text.length < length) text += from[byte % from.length];
    }
  }
  return text;
}
