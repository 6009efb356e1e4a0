/** Scopes as OAuth writes them: words with spaces between (RFC 6749, 3.3). Whose they are is a stranger's word. */

const word = /^[\x21\x23-\x5b\x5d-\x7e]+$/;
/** They become part of an address. */
const maxCharacters = 4096;

/** Each once, those that are named first first, as many as there is room for. Null: none. */
export function union(...scopes: readonly (string | null | undefined)[]): string | null {
  const words = new Set(scopes.flatMap((scope) => (scope ?? "").split(" ")).filter((one) => word.test(one)));
  let all = "";
  for (const one of words) {
    const longer = all === "" ? one : `${all} ${one}`;
    if (longer.length <= maxCharacters) all = longer;
  }
  return all === "" ? null : all;
}
