/**
 * Replaces characters that PostgreSQL cannot store in JSON: NUL and half of a surrogate pair. PostgreSQL accepts such
 * JSON text, but cannot read parts of it. U+FFFD replaces each.
 */

export function storableText(text: string): string {
  return text.replaceAll("\0", "\uFFFD").toWellFormed();
}

/** JSON text of the value, with keys and values replaced. */
export function storableJson(value: unknown): string {
  // `JSON.stringify` escapes exactly these two. The pattern matches every other escape too, and keeps it.
  return JSON.stringify(value).replaceAll(/\\(?:u0000|ud[89a-f][0-9a-f]{2}|.)/g, (escape) =>
    escape.length === 6 ? "\uFFFD" : escape,
  );
}
