/**
 * Mirrors of Debian, taken from the host's own apt, for any suite of the host. So a host that can install
 * packages can make images, also behind a company's mirror, and this project contains no address.
 */
import { readdir, readFile } from "node:fs/promises";
import path from "node:path";
import { RuntimeError } from "../driver.ts";

export interface AptSource {
  uris: string[];
  suites: string[];
  components: string[];
  signedBy: string | null;
}

/** `security` is null if the host has no such source. Images then have only the state of main. */
export interface DebianMirrors {
  main: string;
  security: string | null;
}

/** Keyring that is part of every Debian. The keyring also contains the keys of earlier and later suites. */
const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";

export async function hostMirrors(directory = "/etc/apt"): Promise<DebianMirrors> {
  const parts = await readdir(path.join(directory, "sources.list.d")).catch(() => []);
  const files = ["sources.list", ...parts.map((name) => `sources.list.d/${name}`)];
  const sources = await Promise.all(
    files.map(async (name) => {
      if (!name.endsWith(".list") && !name.endsWith(".sources")) return [];
      const text = await readFile(path.join(directory, name), "utf8").catch(() => "");
      return name.endsWith(".list") ? parseOneLine(text) : parseDeb822(text);
    }),
  );
  return pickMirrors(sources.flat());
}

/** Parses sources.list(5) in "one-line-style": `deb [ option=value … ] uri suite component …` */
export function parseOneLine(text: string): AptSource[] {
  return text.split("\n").flatMap((line) => {
    const match = /^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)/.exec(line);
    if (match === null) return [];
    const [, options = "", uri = "", suite = "", components = ""] = match;
    const signedBy = /(?:^|\s)signed-by=(\S+)/.exec(options)?.[1] ?? null;
    return [{ uris: [uri], suites: [suite], components: words(components), signedBy }];
  });
}

/**
 * Parses sources.list(5) in "deb822-style": paragraphs of `Field: value`, continued by lines that start with a space.
 */
export function parseDeb822(text: string): AptSource[] {
  const lines = text.split("\n").filter((line) => !line.startsWith("#"));
  return lines
    .join("\n")
    .split(/\n\s*\n/)
    .flatMap((paragraph) => {
      const fields = new Map(
        [...paragraph.matchAll(/^([\w-]+):[ \t]*((?:.*(?:\n[ \t].*)*)?)/gm)].map(
          ([, field = "", value = ""]) => [field.toLowerCase(), value],
        ),
      );
      const get = (field: string) => words(fields.get(field) ?? "");
      const enabled = !["no", "false", "0", "off"].includes(
        (fields.get("enabled") ?? "yes").trim().toLowerCase(),
      );
      if (!enabled || !get("types").includes("deb")) return [];
      const signedBy = fields.get("signed-by")?.trim() ?? null;
      return [{ uris: get("uris"), suites: get("suites"), components: get("components"), signedBy }];
    });
}

function words(text: string): string[] {
  return text.split(/\s+/).filter((word) => word !== "");
}

/**
 * Chooses Debian's own sources. Vendors also use Debian's suite names (a vendor's "bookworm main"). So the signer
 * decides if it is set. Otherwise the last part of the address decides: `debian` or `debian-security` on every mirror.
 */
export function pickMirrors(sources: readonly AptSource[]): DebianMirrors {
  const candidates = sources
    .filter(({ components }) => components.includes("main"))
    .flatMap(({ uris, suites, signedBy }) =>
      uris.map((uri) => ({ uri: uri.replace(/\/+$/, ""), suites, signedBy })),
    )
    .filter(({ uri, signedBy }) => {
      if (!/^https?:\/\//.test(uri)) return false;
      return signedBy === null ? /\/debian(-security)?$/.test(uri) : signedBy.includes("debian-archive");
    });
  const isSecurity = (suite: string) => /-security$|\/updates$/.test(suite);
  const main = candidates.find(({ suites }) => suites.some((suite) => /^[a-z]+$/.test(suite)));
  if (main === undefined) {
    throw new RuntimeError(
      "image_failed",
      "this host's apt names no Debian mirror: add Debian's main archive to /etc/apt/sources.list.d, signed by debian-archive-keyring",
    );
  }
  return { main: main.uri, security: candidates.find(({ suites }) => suites.some(isSecurity))?.uri ?? null };
}

/** Returns the sources.list for an image, which the image keeps: the suite, its updates and its security fixes. */
export function sourcesList(mirrors: DebianMirrors, suite: string, components: readonly string[]): string {
  const line = (uri: string, of: string) =>
    `deb [signed-by=${KEYRING}] ${uri} ${of} ${components.join(" ")}\n`;
  return [
    line(mirrors.main, suite),
    line(mirrors.main, `${suite}-updates`),
    mirrors.security === null ? "" : line(mirrors.security, `${suite}-security`),
  ].join("");
}
