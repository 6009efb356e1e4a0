/**
 * Parses the address of a project's repository: `https://host/path`, `ssh://user@host/path` or git's short form
 * `user@host:path`. The address becomes an argument of git, so no part of it may look like an option or another
 * protocol. The whole workspace can read the address, so it may not contain a password.
 */
/** A parsed address. `host` includes the port, if that is not the default one. */
export type RepositoryUrl = { kind: "https" | "ssh"; host: string };

const hint = "must not contain a user name or password; put a token in git_token";

/** Returns the parsed address, or a problem as a clause that follows the field's name. */
export function parseRepositoryUrl(text: string): RepositoryUrl | { problem: string } {
  if (!/^[\u0021-\u007e]+$/.test(text))
    return { problem: "must contain printable ASCII characters only, without spaces" };
  if (/^https:\/\//i.test(text)) {
    const url = URL.parse(text);
    if (!url?.hostname) return { problem: "must be a URL" };
    if (url.username || url.password) return { problem: hint };
    return plain(url) ?? { kind: "https", host: url.host };
  }
  if (/^ssh:\/\//i.test(text)) {
    const url = URL.parse(text);
    if (!url || !isHost(url.hostname)) return { problem: "must be a URL" };
    if (url.password) return { problem: "must not contain a password; the project's deploy key is used" };
    if (url.username !== "" && !isUser(url.username))
      return { problem: "must have a user name of letters, digits and . _ -, such as git" };
    return plain(url) ?? { kind: "ssh", host: url.host.replace(/:22$/, "") };
  }
  if (text.includes("://")) return { problem: "must be an https or ssh address" };
  const [, user, host, path] = /^(?:([^@:/]+)@)?([^@:/]+):(.+)$/.exec(text) ?? [];
  if (host === undefined || path === undefined || !isHost(host) || path.startsWith("-")) {
    return { problem: "must be an https or ssh address, or user@host:path" };
  }
  // Prefixes such as `ext::` and `fd::` name a program to run.
  if (path.startsWith(":") || (user !== undefined && !isUser(user))) {
    return { problem: "must be an https or ssh address, or user@host:path" };
  }
  return { kind: "ssh", host };
}

function plain(url: URL): { problem: string } | undefined {
  if (url.search || url.hash) return { problem: "must not have a query or a fragment" };
  return url.pathname.length > 1 ? undefined : { problem: "must name a repository" };
}

const isHost = (text: string): boolean => /^(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-fA-F:.]+\])$/.test(text);
const isUser = (text: string): boolean => /^[A-Za-z0-9_][A-Za-z0-9_.-]*$/.test(text);
