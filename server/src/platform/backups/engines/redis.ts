/**
 * Redis is backed up as a replica would receive it: the streamed RDB of a fork. The content is described while writes
 * are paused. The pause begins just before the fork and ends when the fork's first bytes arrive, usually after
 * milliseconds. Keys are counted in each database and hashed by Redis' own DEBUG DIGEST. A small database is hashed
 * whole, a large one by a random sample. The test restore loads the bytes as a replica without a primary, which expires
 * nothing.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { runAllOrAbort } from "#lib/concurrency/run-all-or-abort.ts";
import type { Guest } from "#machines/host/guest.ts";
import type { Addons } from "#platform/addons/addons.ts";
import type { BackupEngine } from "./engine.ts";
import { BackupFailed } from "../errors.ts";
import { type RedisDescription, listDifferences, readKeyspace } from "./redis-contents.ts";
import { withoutMark } from "./redis-stream.ts";
import { outputOf, type Program, textOf } from "./streams.ts";

const admin = "/usr/local/lib/kontor-addon/admin";
const data = "/persist/redis";
const appendOnly = `${data}/appendonlydir`;
const manifest = `${appendOnly}/appendonly.aof.manifest`;
const roots = ["/persist"];
/** Directory of the loaded data in the throwaway instance. */
const trial = "/persist/kontor-try";
const trialFile = "try.rdb";

const mib = 1024 ** 2;
/**
 * Size up to which all data is hashed. DEBUG DIGEST of this size takes about a fifth of a second, and blocks all
 * clients.
 */
const digestAllBelowBytes = 16 * mib;
const sampledKeys = 200;
/** Longest pause of writes, even if this server dies. An attempt that takes longer is repeated. */
const pauseMs = 5_000;
const viewTries = 5;
const lookEveryMs = 100;

/** Returns keys with a plain name and a small value. Hashing a large value would block all clients. */
const sampleScript = `
local keys, seen = {}, {}
for i = 1, ${sampledKeys * 2} do
  local key = redis.call('RANDOMKEY')
  if not key then break end
  if not seen[key] and string.match(key, '^[%w%p]+$') and #keys < ${sampledKeys}
    and (redis.call('MEMORY', 'USAGE', key, 'SAMPLES', '5') or 1e9) < 65536 then
    keys[#keys + 1] = key
  end
  seen[key] = true
end
return keys`;

export const redis: BackupEngine = {
  extension: "rdb",

  async dump(guest, _addon, sink, signal) {
    for (let attempt = 1; ; attempt++) {
      await untilNoChild(guest, signal);
      const [dumped] = await runAllOrAbort(signal, async (ends) => {
        const view = await openView(guest, ends);
        // If the sink fails, the transfer ends.
        return view && { stored: await sink(view.content), description: view.description };
      });
      if (dumped) return dumped;
      if (attempt === viewTries) {
        throw new BackupFailed(
          "Redis could not be backed up at one moment: it is too busy. Try again later.",
        );
      }
    }
  },

  async load(guest, _addon, content) {
    await writeRestored(guest, trial, trialFile, content);
  },

  async compare(guest, _addon, description, signal) {
    const expected = description as RedisDescription;
    const socket = `${trial}/socket`;
    const ends = new AbortController();
    const running = outputOf(guest, replica(socket), AbortSignal.any([signal, ends.signal]));
    // The process's output is read, so that the process never blocks. If the process ends early, Redis does not
    // respond.
    let hasEnded = false;
    const reading = drain(running)
      .catch(() => {})
      .finally(() => (hasEnded = true));
    try {
      const query = (...words: string[]) =>
        textOf(guest, { argv: ["redis-cli", "-s", socket, ...words], user: "redis" }, signal, 16 * mib);
      while (!(await responds(query))) {
        if (hasEnded) throw new BackupFailed("Redis rejected the bytes of the test restore.");
        await sleep(lookEveryMs, undefined, { signal });
      }
      const found: RedisDescription = {
        counts: readKeyspace(await query("INFO", "keyspace")),
        digest: expected.digest === null ? null : (await query("DEBUG", "DIGEST")).trim(),
        sample: await digestsOf(query, Object.keys(expected.sample)),
      };
      const differ = listDifferences(expected, found);
      if (differ.length > 0)
        throw new BackupFailed(`The test restore differs from the database: ${differ.join("; ")}.`);
      return (await query("DEBUG", "DIGEST")).trim();
    } finally {
      ends.abort(new Error("the test restore has ended"));
      await reading;
    }
  },

  async restore({ addons, addon, id, source, signal }) {
    const guest = runningGuest(addons, addon.id);
    const names = namesOf(id);
    // An earlier run already switched the files, and only the clean-up is left.
    if (await isSwitched(guest, names)) return;
    await writeRestored(guest, appendOnly, names.base, source());
    signal.throwIfAborted();
    await addons.whileStopped(addon.id, async (stopped) => {
      const old = await textOf(stopped, { argv: ["cat", manifest] }, signal, mib);
      const write = (path: string, text: string) =>
        stopped.writeFile(path, Buffer.from(text), { mode: 0o644, roots });
      // The new files have numbers above the old ones, because Redis appends to a file that exists.
      await write(`${appendOnly}/${names.log}`, "");
      await write(names.next, manifestOf(names, nextNumber(old)));
      await write(names.before, old);
      const paths = [`${appendOnly}/${names.log}`, names.next, names.before];
      await textOf(stopped, { argv: ["chown", "redis:redis", ...paths] }, signal);
      // This rename switches to the restored data.
      await stopped.move(names.next, manifest, { overwrite: true, roots });
    });
    if (addons.guest(addon.id) || !(await putBack(addons, addon.id, names))) return;
    throw new BackupFailed("Redis did not start with the restored data; it has its earlier data.");
  },

  async isInPlace({ addons, addon, id, putsBack }) {
    const running = addons.running(addon.id);
    const guest = running?.guest();
    if (!guest) throw new BackupFailed("The add-on has no machine.");
    const names = namesOf(id);
    if (!(await isSwitched(guest, names))) return false;
    if (putsBack) return !(await putBack(addons, addon.id, names));
    // The old data stays until Redis has started with the restored data.
    if (!running?.isUp) throw new BackupFailed("The add-on is not running.");
    return true;
  },

  async cleanUp({ addons, addon, id, isCompleted }) {
    const guest = runningGuest(addons, addon.id);
    const names = namesOf(id);
    const signal = AbortSignal.timeout(60_000);
    const readManifest = async (path: string) =>
      filesOf(await textOf(guest, { argv: ["cat", path] }, signal, mib));
    const kept = new Set(await readManifest(manifest));
    const hasOld = await isSwitched(guest, names);
    if (hasOld && !isCompleted) return;
    const old = hasOld ? await readManifest(names.before) : [];
    for (const name of [...old, names.base, names.log])
      if (!kept.has(name)) await deleteIfPresent(guest, `${appendOnly}/${name}`);
    // These files show the progress of the restore, so they are deleted last.
    for (const path of [names.next, names.before]) await deleteIfPresent(guest, path);
  },
};

interface View {
  description: RedisDescription;
  content: AsyncIterable<Buffer>;
}

/** Opens the dump and describes the content. Returns undefined if that took longer than the pause of writes. */
async function openView(guest: Guest, signal: AbortSignal): Promise<View | undefined> {
  const query = (...words: string[]) => textOf(guest, asAdmin(...words), signal, 16 * mib);
  await query("CONFIG", "SET", "repl-diskless-sync", "yes", "repl-diskless-sync-delay", "0");
  const bytes = Number(/^used_memory_dataset:(\d+)/m.exec(await query("INFO", "memory"))?.[1] ?? Infinity);
  const until = performance.now() + pauseMs - 500;
  await query("CLIENT", "PAUSE", String(pauseMs), "WRITE");
  try {
    const isSmall = bytes < digestAllBelowBytes;
    const keys = isSmall ? [] : lines(await query("EVAL_RO", sampleScript, "0"));
    const description: RedisDescription = {
      counts: readKeyspace(await query("INFO", "keyspace")),
      digest: isSmall ? (await query("DEBUG", "DIGEST")).trim() : null,
      sample: await digestsOf(query, keys),
    };
    const output = outputOf(guest, asAdmin("--rdb", "-"), signal);
    // The first bytes arrive after the fork. The fork's memory no longer changes.
    const first = await output.next();
    if (first.done) throw new BackupFailed("Redis sent no data.");
    if (performance.now() < until) return { description, content: withoutMark(join(first.value, output)) };
    await output.return(undefined);
    return undefined;
  } finally {
    await query("CLIENT", "UNPAUSE");
  }
}

async function* join(first: Buffer, rest: AsyncGenerator<Buffer>): AsyncGenerator<Buffer> {
  try {
    yield first;
    yield* rest;
  } finally {
    await rest.return(undefined);
  }
}

/** Waits until no child of Redis runs. Redis runs one child at a time: ours would wait while writes are paused. */
async function untilNoChild(guest: Guest, signal: AbortSignal): Promise<void> {
  for (;;) {
    const info = await textOf(guest, asAdmin("INFO", "persistence"), signal);
    if (!/^(?:rdb_bgsave_in_progress|aof_rewrite_in_progress|loading):1/m.test(info)) return;
    await sleep(lookEveryMs, undefined, { signal });
  }
}

function asAdmin(...words: string[]): Program {
  return { argv: ["/bin/sh", admin, ...words] };
}

type Query = (...words: string[]) => Promise<string>;

async function digestsOf(query: Query, keys: readonly string[]): Promise<Record<string, string>> {
  if (keys.length === 0) return {};
  const digests = lines(await query("DEBUG", "DIGEST-VALUE", ...keys));
  return Object.fromEntries(keys.map((key, at) => [key, digests[at] ?? ""]));
}

async function responds(query: Query): Promise<boolean> {
  // Redis responds with an error while it loads data.
  return query("PING").then(
    (info) => info.trim() === "PONG",
    () => false,
  );
}

/**
 * Returns the program that loads a backup. Redis runs as a replica, which keeps expired keys when it loads, so every
 * counted key exists.
 */
function replica(socket: string): Program {
  const settings = {
    port: "0",
    unixsocket: socket,
    dir: trial,
    dbfilename: trialFile,
    appendonly: "no",
    save: "",
    replicaof: "127.0.0.1 1",
    "enable-debug-command": "yes",
    "rdb-del-sync-files": "no",
    logfile: "",
    daemonize: "no",
  };
  const argv = Object.entries(settings).flatMap(([name, value]) => [
    `--${name}`,
    ...(name === "replicaof" ? value.split(" ") : [value]),
  ]);
  return { argv: ["redis-server", ...argv], user: "redis" };
}

async function writeRestored(
  guest: Guest,
  directory: string,
  name: string,
  content: AsyncIterable<Buffer>,
): Promise<void> {
  await guest.mkdir(directory, { mode: 0o755, parents: true, roots });
  const path = `${directory}/${name}`;
  await guest.writeFile(path, content, { mode: 0o644, roots });
  await textOf(guest, { argv: ["chown", "redis:redis", directory, path] }, AbortSignal.timeout(30_000));
}

async function deleteIfPresent(guest: Guest, path: string): Promise<void> {
  if (await guest.stat(path)) await guest.remove(path, { roots });
}

function runningGuest(addons: Addons, id: string): Guest {
  const guest = addons.guest(id);
  if (!guest) throw new BackupFailed("The add-on is not running.");
  return guest;
}

type Names = ReturnType<typeof namesOf>;

async function isSwitched(guest: Guest, { next, before }: Names): Promise<boolean> {
  return !(await guest.stat(next)) && (await guest.stat(before)) !== undefined;
}

/** Puts the old data back. Returns false if Redis has started with the restored data, which then stays. */
function putBack(addons: Addons, id: string, { before }: Names): Promise<boolean> {
  return addons.whileDown(id, (guest) => guest.move(before, manifest, { overwrite: true, roots }));
}

function namesOf(id: string) {
  const short = id.replaceAll("-", "");
  return {
    base: `restored-${short}.base.rdb`,
    log: `restored-${short}.incr.aof`,
    next: `${appendOnly}/kontor-new-${short}`,
    before: `${appendOnly}/kontor-old-${short}`,
  };
}

function manifestOf({ base, log }: { base: string; log: string }, number: number): string {
  return `file ${base} seq ${number} type b\nfile ${log} seq ${number} type i\n`;
}

/** Returns a number above all numbers in the manifest. */
function nextNumber(text: string): number {
  return Math.max(0, ...[...text.matchAll(/ seq (\d+) /g)].map(([, number]) => Number(number))) + 1;
}

/** Returns the file names of a manifest, whose lines have the form `file <name> seq <n> type <t>`. */
function filesOf(text: string): string[] {
  return [...text.matchAll(/^file "?([^"\s]+)"? seq /gm)].flatMap(([, name]) =>
    name === undefined ? [] : [name],
  );
}

function lines(text: string): string[] {
  return text.split("\n").filter((line) => line !== "");
}

async function drain(output: AsyncIterable<Buffer>): Promise<void> {
  for await (const _ of output);
}
