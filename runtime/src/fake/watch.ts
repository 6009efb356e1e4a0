/** Watches a directory of a fake machine: scans it every few milliseconds and reports the differences. */
import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { RuntimeError, type FileChange } from "../driver.ts";

const LOOK_EVERY_MS = 20;
/** Names of temporary files during a write of a fake machine. */
const ASIDE = /^\.kontor-[0-9a-f]{12}$/;

interface Entry {
  inode: number;
  isDir: boolean;
  /** Modification time and size of a file. */
  state: string;
}

/** Watches a directory until `signal` aborts. `gate` fails once the machine has ended. */
export async function watchDirectory(
  hostPath: string,
  path: string,
  gate: () => Promise<void>,
  options: { recursive: boolean; signal: AbortSignal },
): Promise<AsyncIterable<FileChange>> {
  if (!(await stat(hostPath)).isDirectory())
    throw new RuntimeError("not_directory", `${path} is no directory`);
  const before = await look(hostPath, path, options.recursive);
  return changes(before, () => look(hostPath, path, options.recursive), gate, options.signal);
}

async function* changes(
  first: Map<string, Entry>,
  again: () => Promise<Map<string, Entry>>,
  gate: () => Promise<void>,
  signal: AbortSignal,
): AsyncGenerator<FileChange> {
  for (let before = first; ;) {
    await sleep(LOOK_EVERY_MS, undefined, { signal }).catch(() => signal.throwIfAborted());
    await gate();
    const now = await again().catch(() => undefined);
    yield* difference(before, now ?? new Map());
    if (!now) return;
    before = now;
  }
}

/**
 * Scans a directory. An entry that is renamed during the scan can be missing under both names, so the scan is repeated.
 */
async function look(hostPath: string, path: string, recursive: boolean): Promise<Map<string, Entry>> {
  for (let tries = 1; ; tries += 1) {
    const found = { hasVanished: false };
    const seen = await lookOnce(hostPath, path, recursive, found);
    if (!found.hasVanished || tries === 5) return seen;
  }
}

async function lookOnce(
  hostPath: string,
  path: string,
  recursive: boolean,
  found: { hasVanished: boolean },
): Promise<Map<string, Entry>> {
  const seen = new Map<string, Entry>();
  for (const entry of await readdir(hostPath, { withFileTypes: true })) {
    const at = join(hostPath, entry.name);
    const info = await stat(at).catch(() => undefined);
    if (!info) found.hasVanished = true;
    if (!info || ASIDE.test(entry.name)) continue;
    const isDir = entry.isDirectory();
    const inside = `${path === "/" ? "" : path}/${entry.name}`;
    seen.set(inside, {
      inode: info.ino,
      isDir,
      state: isDir ? "" : `${info.mtimeMs} ${info.size} ${info.ino}`,
    });
    if (!isDir || !recursive) continue;
    const below = await lookOnce(at, inside, recursive, found).catch(() => {
      found.hasVanished = true;
      return new Map<string, Entry>();
    });
    for (const [name, what] of below) seen.set(name, what);
  }
  return seen;
}

function difference(before: Map<string, Entry>, now: Map<string, Entry>): FileChange[] {
  const gone = new Map(
    [...before].filter(([path]) => !now.has(path)).map(([path, { inode }]) => [inode, path]),
  );
  const moved = new Set<string>();
  const found: FileChange[] = [];
  for (const [path, { inode, isDir, state }] of now) {
    const known = before.get(path);
    const from = known ? undefined : gone.get(inode);
    if (from !== undefined) {
      moved.add(from);
      // Entries below a directory moved with it, and are not reported again.
      if (!moved.has(parent(from))) found.push({ kind: "moved", path, from, isDir });
    } else if (!known) found.push({ kind: "created", path, isDir });
    else if (known.state !== state) found.push({ kind: "modified", path, isDir });
  }
  const deleted = [...before].filter(([path]) => !now.has(path) && !moved.has(path));
  return [
    ...found,
    ...deleted.toReversed().map(([path, { isDir }]) => ({ kind: "deleted" as const, path, isDir })),
  ];
}

function parent(path: string): string {
  return path.slice(0, path.lastIndexOf("/"));
}
