/**
 * What others say, as PostgreSQL can keep it: neither a NUL nor half of a surrogate pair is a character to it, and a
 * JSON text that holds one can be stored but never be taken apart again. U+FFFD stands in their place.
 */

export function storableText(text: string): string {
  return text.replaceAll("\0", "\uFFFD").toWellFormed();
}

/** JSON text of the value, its keys as well as its values. */
export function storableJson(value: unknown): string {
  // `JSON.stringify` escapes exactly these two; every other escape is matched so that it is passed over whole.
  return JSON.stringify(value).replaceAll(/\\(?:u0000|ud[89a-f][0-9a-f]{2}|.)/g, (escape) =>
    escape.length === 6 ? "\uFFFD" : escape,
  );
}
