/** Hints that stand for a secret in responses. A client may send a hint back, which keeps the secret. */

/** Shows the last four characters of a secret, or `…` for a short secret. */
export function hintOf(secret: string): string {
  return secret.length < 16 ? "…" : `…${secret.slice(-4)}`;
}

/** True for the placeholder of a value: asterisks only, or the form of a hint. */
export function isMask(text: string): boolean {
  return /^(\*{8,}|….{0,4})$/.test(text);
}

/** True if the text is a placeholder for this stored secret. */
export function isMaskOf(text: string, secret: string): boolean {
  return /^\*{8,}$/.test(text) || text === hintOf(secret);
}
