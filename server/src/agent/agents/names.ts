/**
 * Rules for the names of agents, versions and aliases. Each name is a valid path segment and cannot be confused with an
 * id or a version number.
 */

/** Path segments of the API that an agent's name would shadow. */
const reserved = new Set(["runs", "approvals", "pause-all"]);

/** Returns the fault of a name, or undefined if the name is valid. */
export function findNameFault(name: string): string | undefined {
  if (!/^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$/.test(name))
    return "may contain a-z, 0-9, - and _, and begins and ends with a letter or digit";
  if (name.startsWith("agt_")) return "must not begin with agt_, which is the prefix of ids";
  if (reserved.has(name)) return "is reserved for a path of the API; use another name";
  return undefined;
}

export function findAliasFault(name: string): string | undefined {
  if (!/^[a-z]([a-z0-9_-]*[a-z0-9])?$/.test(name))
    return "may contain a-z, 0-9, - and _, begins with a letter and ends with a letter or digit";
  if (name === "latest" || /^v\d+$/.test(name)) return "is reserved for versions; use another name";
  return undefined;
}

/** Returns true if a qualifier is a version number, such as `3` or `v3`. */
export function isNumbered(qualifier: string): boolean {
  const reference = parseVersion(qualifier);
  return typeof reference === "object" && "version" in reference;
}

/** A parsed reference to a version: a number, `latest` or an alias. */
export type VersionReference = { version: number } | "latest" | { alias: string };

/** Parses `3`, `v3`, `latest` or an alias. Returns undefined if the reference is invalid. */
export function parseVersion(text: string): VersionReference | undefined {
  if (text === "latest") return "latest";
  const [, digits] = /^v?([1-9]\d{0,8})$/.exec(text) ?? [];
  if (digits !== undefined) return { version: Number(digits) };
  return text.length <= 64 && findAliasFault(text) === undefined ? { alias: text } : undefined;
}
