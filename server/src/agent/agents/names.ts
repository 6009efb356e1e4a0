/** How an agent, a version and an alias may be called, so that each can stand in an address and none is taken for another. */

/** Words that stand in an agent's place in an address. */
const reserved = new Set(["runs", "approvals", "pause-all"]);

/** Why a name does not do; undefined where it does. */
export function whyNotName(name: string): string | undefined {
  if (!/^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$/.test(name))
    return "may hold a-z, 0-9, - and _, and begins and ends with a letter or digit";
  if (name.startsWith("agt_")) return "must not begin with agt_, which ids do";
  if (reserved.has(name)) return "is a word of the API itself";
  return undefined;
}

export function whyNotAlias(name: string): string | undefined {
  if (!/^[a-z]([a-z0-9_-]*[a-z0-9])?$/.test(name))
    return "may hold a-z, 0-9, - and _, begins with a letter and ends with a letter or digit";
  if (name === "latest" || /^v\d+$/.test(name)) return "is how versions are called";
  return undefined;
}

/** True for `3` and `v3`. */
export function isNumbered(qualifier: string): boolean {
  const reference = parseVersion(qualifier);
  return typeof reference === "object" && "version" in reference;
}

/** What `3`, `v3`, `latest` or an alias asks for. */
export type VersionReference = { version: number } | "latest" | { alias: string };

/** Undefined for what can't be any of them. */
export function parseVersion(text: string): VersionReference | undefined {
  if (text === "latest") return "latest";
  const [, digits] = /^v?([1-9]\d{0,8})$/.exec(text) ?? [];
  if (digits !== undefined) return { version: Number(digits) };
  return text.length <= 64 && whyNotAlias(text) === undefined ? { alias: text } : undefined;
}
