/** Hints that stand for a secret in responses, and how a client sends one back. */

/** The last four characters; only `…` for a text so short that they would reveal it. */
export function hintOf(secret: string): string {
  return secret.length < 16 ? "…" : `…${secret.slice(-4)}`;
}

/** True for text that a client shows in place of a value: asterisks alone, or the form of a hint. */
export function isMask(text: string): boolean {
  return /^(\*{8,}|….{0,4})$/.test(text);
}

/** True when the text stands for this stored secret. */
export function isMaskOf(text: string, secret: string): boolean {
  return /^\*{8,}$/.test(text) || text === hintOf(secret);
}
