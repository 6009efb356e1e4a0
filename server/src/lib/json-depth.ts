/**
 * Checks the nesting of JSON on its bytes, before `JSON.parse`. Code that walks parsed JSON recurses, so a deep value
 * would overflow its stack.
 */
const quote = 0x22;
const backslash = 0x5c;
const openBracket = 0x5b;
const closeBracket = 0x5d;
const openBrace = 0x7b;
const closeBrace = 0x7d;

/** True if arrays and objects are nested deeper than `maxDepth`. `JSON.parse` reports malformed JSON. */
export function isNestedDeeper(bytes: Uint8Array, maxDepth: number): boolean {
  let depth = 0;
  for (let at = 0; at < bytes.length; at += 1) {
    const byte = bytes[at];
    if (byte === quote) at = endOfString(bytes, at);
    else if (byte === openBracket || byte === openBrace) depth += 1;
    else if (byte === closeBracket || byte === closeBrace) depth -= 1;
    if (depth > maxDepth) return true;
  }
  return false;
}

/**
 * Returns the index of the quote that closes the string opened at `start`, or the length of `bytes` if the string is
 * not closed.
 */
export function endOfString(bytes: Uint8Array, start: number): number {
  let at = start + 1;
  while (at < bytes.length && bytes[at] !== quote) at += bytes[at] === backslash ? 2 : 1;
  return at;
}
