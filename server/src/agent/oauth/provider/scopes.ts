/** OAuth scopes: words separated by spaces (RFC 6749, section 3.3). Scopes come from untrusted servers. */

const word = /^[\x21\x23-\x5b\x5d-\x7e]+$/;
/** Maximum length of joined scopes. Scopes become a part of a URL. */
const maxCharacters = 4096;

/** Joins scopes in this order, without duplicates, up to the maximum length. Returns null if there are none. */
export function joinScopes(...scopes: readonly (string | null | undefined)[]): string | null {
  const words = new Set(scopes.flatMap((scope) => (scope ?? "").split(" ")).filter((one) => word.test(one)));
  let all = "";
  for (const one of words) {
    const longer = all === "" ? one : `${all} ${one}`;
    if (longer.length <= maxCharacters) all = longer;
  }
  return all === "" ? null : all;
}
