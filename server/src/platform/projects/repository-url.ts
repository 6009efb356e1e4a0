/**
 * Where a project's repository is, as its owner wrote it: `https://host/path`, `ssh://user@host/path` or git's short
 * `user@host:path`. It is handed to git later, so nothing in it may be taken for an option or another protocol; and it
 * is shown to everyone in the workspace, so it may not hold a password.
 */
/** `host`, with the port if it is not the default one. */
export type RepositoryUrl = { kind: "https" | "ssh"; host: string };

const hint = "must hold no user name or password; put a token in git_token";

/** What is wrong with it, as words behind the field's name, or what it is. */
export function parseRepositoryUrl(text: string): RepositoryUrl | { problem: string } {
  if (!/^[\u0021-\u007e]+$/.test(text)) return { problem: "must be of printable ASCII without spaces" };
  if (/^https:\/\//i.test(text)) {
    const url = URL.parse(text);
    if (!url?.hostname) return { problem: "must be a URL" };
    if (url.username || url.password) return { problem: hint };
    return plain(url) ?? { kind: "https", host: url.host };
  }
  if (/^ssh:\/\//i.test(text)) {
    const url = URL.parse(text);
    if (!url || !isHost(url.hostname)) return { problem: "must be a URL" };
    if (url.password) return { problem: "must hold no password; the project's deploy key opens it" };
    if (url.username !== "" && !isUser(url.username)) return { problem: "has a strange user name" };
    return plain(url) ?? { kind: "ssh", host: url.host.replace(/:22$/, "") };
  }
  if (text.includes("://")) return { problem: "must be an https or ssh address" };
  const [, user, host, path] = /^(?:([^@:/]+)@)?([^@:/]+):(.+)$/.exec(text) ?? [];
  if (host === undefined || path === undefined || !isHost(host) || path.startsWith("-")) {
    return { problem: "must be an https or ssh address, or user@host:path" };
  }
  // `ext::`, `fd::` and the like name a program to run.
  if (path.startsWith(":") || (user !== undefined && !isUser(user))) {
    return { problem: "must be an https or ssh address, or user@host:path" };
  }
  return { kind: "ssh", host };
}

export function isRepositoryUrl(text: string): boolean {
  return "kind" in parseRepositoryUrl(text);
}

function plain(url: URL): { problem: string } | undefined {
  if (url.search || url.hash) return { problem: "must hold no query and no fragment" };
  return url.pathname.length > 1 ? undefined : { problem: "must name a repository" };
}

const isHost = (text: string): boolean => /^(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-fA-F:.]+\])$/.test(text);
const isUser = (text: string): boolean => /^[A-Za-z0-9_][A-Za-z0-9_.-]*$/.test(text);
