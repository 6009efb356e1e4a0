/**
 * Replaces characters that PostgreSQL cannot store in JSON: NUL and half of a surrogate pair. PostgreSQL accepts JSON
 * text with such characters, but cannot read parts of it. U+FFFD replaces each such character.
 */

export function storableText(text: string): string {
  return text.replaceAll("\0", "\uFFFD").toWellFormed();
}

/** Returns the JSON text of a value. Characters that cannot be stored are replaced in keys and values. */
export function storableJson(value: unknown): string {
  // `JSON.stringify` escapes exactly these two kinds. The pattern matches every other escape too, and the callback
  // keeps it.
  return JSON.stringify(value).replaceAll(/\\(?:u0000|ud[89a-f][0-9a-f]{2}|.)/g, (escape) =>
    escape.length === 6 ? "\uFFFD" : escape,
  );
}
