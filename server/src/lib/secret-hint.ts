/** Hints that stand for a secret in responses, and how a client sends one back. */

/** Shows the last four characters. A text that is too short for this becomes `…`. */
export function hintOf(secret: string): string {
  return secret.length < 16 ? "…" : `…${secret.slice(-4)}`;
}

/** True for a placeholder of a value: asterisks only, or the form of a hint. */
export function isMask(text: string): boolean {
  return /^(\*{8,}|….{0,4})$/.test(text);
}

/** True when the text stands for this stored secret. */
export function isMaskOf(text: string, secret: string): boolean {
  return /^\*{8,}$/.test(text) || text === hintOf(secret);
}
