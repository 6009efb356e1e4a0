/**
 * Python indexes from this host's pip configuration, as variables for pip and uv in a build. The addresses include
 * their credentials: without them, pip fails at an index that requires them. Credentials can be anywhere in an address,
 * so every part that could be a credential is hidden in logs (`hidden`). Pure.
 */

export interface PythonIndexes {
  env: Record<string, string>;
  /** Parts of the addresses that are hidden in logs, both encoded and decoded. */
  hidden: string[];
  /** Path on this host of the certificates that pip trusts instead of the usual ones. */
  cert: string | null;
}

/**
 * Sections of pip's configuration. For `pip install`, later sections override earlier sections (pip's
 * `ConfigOptionParser`).
 */
const sections = ["global", "install", ":env:"];
const named = /^(?:\w[\w.-]*|\[[\da-f:]+\])(?::\d{1,5})?$/i;

/** Parses the output of `pip config list`. `isReached` returns whether a build's network leads to a host. */
export function pythonIndexesOf(printed: string, isReached: (hostname: string) => boolean): PythonIndexes {
  const said = settingsIn(printed);
  const index = addressOf(said.get("index-url"));
  const extras = wordsOf(said.get("extra-index-url")).flatMap((word) => addressOf(word) ?? []);
  // The only index is always passed: without it, pip would install packages of another index, which the owner does not
  // want.
  const more = extras.filter(({ hostname }) => isReached(hostname));
  const all = [...(index ? [index] : []), ...more];
  const trusted = wordsOf(said.get("trusted-host")).filter((word) => named.test(word));
  const cert = said.get("cert")?.trim() || null;
  return {
    env: {
      ...(index ? { PIP_INDEX_URL: index.href, UV_DEFAULT_INDEX: index.href } : {}),
      ...(more.length > 0 ? { PIP_EXTRA_INDEX_URL: joinAddresses(more), UV_INDEX: joinAddresses(more) } : {}),
      ...(trusted.length > 0
        ? { PIP_TRUSTED_HOST: trusted.join(" "), UV_INSECURE_HOST: trusted.join(" ") }
        : {}),
      // An index that requires other credentials fails the build, because no person can type them.
      ...(all.length > 0 ? { PIP_NO_INPUT: "1" } : {}),
    },
    hidden: [...new Set(all.flatMap(secretsIn))],
    cert,
  };
}

/** Parses lines of `section.name='value'`, with values in Python's notation. */
function settingsIn(printed: string): Map<string, string> {
  const found = printed.split("\n").flatMap((line) => {
    const [, section = "", name = "", , text = ""] =
      /^(global|install|:env:)\.([a-z-]+)=(['"])(.*)\3$/.exec(line) ?? [];
    const value = unescapeText(text);
    return value === "" ? [] : [{ rank: sections.indexOf(section), name, value }];
  });
  return new Map(found.toSorted((a, b) => a.rank - b.rank).map(({ name, value }) => [name, value]));
}

function unescapeText(text: string): string {
  const meant: Readonly<Record<string, string>> = { n: "\n", r: "\r", t: "\t" };
  return text.replaceAll(/\\(?:x([\da-f]{2})|u([\da-f]{4})|(.))/g, (_, x?: string, u?: string, char = "") => {
    const code = x ?? u;
    return code === undefined ? (meant[char] ?? char) : String.fromCharCode(Number.parseInt(code, 16));
  });
}

function wordsOf(value: string | undefined): string[] {
  return (value ?? "").split(/\s+/).filter((word) => word !== "");
}

/** Returns the address in a setting, or undefined for a path on this host's disk, which a build cannot read. */
function addressOf(value: string | undefined): URL | undefined {
  const address = URL.parse(value ?? "");
  return address && /^https?:$/.test(address.protocol) ? address : undefined;
}

function joinAddresses(addresses: readonly URL[]): string {
  return addresses.map(({ href }) => href).join(" ");
}

/** Matches an ordinary word, which may also occur elsewhere in a log. */
const word = /^(?:.{0,7}|[a-z]{1,15}(?:[-_.+~][a-z]{1,15})*)$/;

function secretsIn({ username, password, pathname, search, searchParams }: URL): string[] {
  const found = [
    password,
    // Without a password, the user name is a token.
    ...(password === "" || !word.test(username) ? [username] : []),
    ...pathname.split("/").filter((part) => !word.test(part)),
    search.slice(1),
    ...searchParams.values(),
  ];
  return found.filter((part) => part !== "").flatMap((part) => [part, decodePart(part)]);
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
