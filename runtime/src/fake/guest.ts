/**
 * The `Guest` of a fake machine: host processes and a scratch directory, with the errors of the real guest.
 */
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createReadStream, type Stats } from "node:fs";
import {
  access,
  chmod,
  lstat,
  mkdir,
  open,
  readdir,
  readFile,
  realpath,
  readlink,
  rename,
  rm,
  stat,
  unlink,
} from "node:fs/promises";
import { connect } from "node:net";
import { dirname, join } from "node:path";
import { type Duplex, duplexPair, Readable } from "node:stream";
import {
  RuntimeError,
  type CommandChunk,
  type CommandLogs,
  type CommandRecord,
  type CommandSpec,
  type DirEntry,
  type FileChange,
  type FileStat,
  type Guest,
  type GuestProcess,
  type ListPage,
  type ReadOptions,
  type SpawnSpec,
  type TerminalSize,
  type Within,
} from "../driver.ts";
import { cutPage } from "../guest/client.ts";
import { FakeCommands } from "./commands.ts";
import { isBelow, realTarget, toHostPath, toRuntimeError, withRealParent } from "./paths.ts";
import { FakeProcess } from "./process.ts";
import { watchDirectory } from "./watch.ts";

const MAX_ENTRIES = 10_000;
const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

export class FakeGuest implements Guest {
  /** Base environment of every process. A claim replaces it. */
  env: Record<string, string> = {};
  hostname = "";
  readonly processes = new Set<FakeProcess>();
  readonly #commands = new FakeCommands();
  readonly #root: string;
  /** Functions of the test that serve ports of the machine, by port. */
  readonly #played: ReadonlyMap<number, (connection: Duplex) => void>;
  /** Awaited before every call. Delays the call while the machine is frozen, and fails once the machine has ended. */
  readonly #gate: () => Promise<void>;

  constructor(
    root: string,
    played: ReadonlyMap<number, (connection: Duplex) => void>,
    gate: () => Promise<void>,
  ) {
    this.#root = root;
    this.#played = played;
    this.#gate = gate;
  }

  async ping(): Promise<void> {
    await this.#gate();
  }

  spawn(spec: SpawnSpec): Promise<GuestProcess> {
    return this.#do(() => this.#start(spec));
  }

  async #start(spec: SpawnSpec & { terminal?: TerminalSize }): Promise<FakeProcess> {
    // The real guest refuses this in guest/src/wire/frame.c.
    if (spec.user?.includes("\0")) throw new RuntimeError("guest_protocol", "user holds a NUL byte");
    const user = await findUser(spec.user ?? "root");
    const cwd = toHostPath(this.#root, spec.cwd ?? "/workspace");
    if (!(await stat(cwd)).isDirectory())
      throw new RuntimeError("not_directory", `${spec.cwd} is no directory`);
    const running = await FakeProcess.start({
      argv: await toArgv(spec),
      cwd,
      env: {
        PATH: DEFAULT_PATH,
        LANG: "C.UTF-8",
        HOME: user.home,
        USER: user.name,
        LOGNAME: user.name,
        HOSTNAME: this.hostname,
        // Node's pipes are sockets: a bash at shell level 1 would mistake them for rshd and read ~/.bashrc.
        SHLVL: "1",
        ...this.env,
        ...spec.env,
      },
      onDisconnect: spec.onDisconnect,
      ...(spec.terminal === undefined ? {} : { terminal: spec.terminal }),
      ...(spec.timeoutMs === undefined ? {} : { timeoutMs: spec.timeoutMs }),
      ...(user.uid === process.getuid?.() ? {} : { uid: user.uid, gid: user.gid }),
    });
    this.processes.add(running);
    void running.ended.then(() => this.processes.delete(running));
    // The machine may have ended during the start, before this process was registered with it.
    await this.#gate().catch((error: unknown) => {
      running.machineEnds();
      throw error;
    });
    return running;
  }

  readFile(
    path: string,
    { maxBytes = Infinity, offset = 0, length = Infinity }: ReadOptions = {},
  ): Promise<{ stat: FileStat; content: Readable }> {
    return this.#do(async () => {
      const hostPath = toHostPath(this.#root, path);
      const info = toStat(await stat(hostPath));
      if (info.isDir) throw new RuntimeError("is_directory", `${path} is a directory`);
      if (!(await stat(hostPath)).isFile()) {
        throw new RuntimeError("not_permitted", `${path} is not a regular file`);
      }
      if (info.sizeBytes > maxBytes) {
        throw new RuntimeError("too_large", "the file is larger than max_bytes");
      }
      if (length === 0) return { stat: info, content: Readable.from([]) };
      return { stat: info, content: createReadStream(hostPath, { start: offset, end: offset + length - 1 }) };
    });
  }

  writeFile(
    path: string,
    content: Buffer | AsyncIterable<Buffer>,
    options: { mode: number } & Within,
  ): Promise<{ sizeBytes: number }> {
    return this.#do(async () => {
      const target = await realTarget(toHostPath(this.#root, path));
      await this.#requireWithin(target, path, options);
      const there = await lstat(target).catch(() => undefined);
      if (there?.isDirectory() === true) throw new RuntimeError("is_directory", `${path} is a directory`);
      if (there !== undefined && !there.isFile()) {
        throw new RuntimeError("not_permitted", `${path} is not a regular file`);
      }
      await mkdir(dirname(target), { recursive: true, mode: 0o755 });
      const aside = join(dirname(target), `.kontor-${randomBytes(6).toString("hex")}`);
      const file = await open(aside, "wx", options.mode);
      let sizeBytes = 0;
      try {
        for await (const piece of Buffer.isBuffer(content) ? [content] : content) {
          await file.write(piece);
          sizeBytes += piece.length;
        }
        await file.chmod(options.mode);
        await rename(aside, target);
      } catch (error) {
        await rm(aside, { force: true });
        throw error;
      } finally {
        await file.close();
      }
      return { sizeBytes };
    });
  }

  list(path: string, page?: ListPage): Promise<DirEntry[]> {
    return this.#do(async () => {
      const directory = toHostPath(this.#root, path);
      const names = await readdir(directory);
      if (page === undefined && names.length > MAX_ENTRIES) {
        throw new RuntimeError("too_large", `the directory has more than ${MAX_ENTRIES} entries`);
      }
      const wanted = names.map((name) => ({ name }));
      return Promise.all(
        (page === undefined ? wanted : cutPage(wanted, page)).map(async ({ name }) => ({
          name,
          ...(await statWithTarget(join(directory, name))),
        })),
      );
    });
  }

  stat(path: string): Promise<FileStat | undefined> {
    return this.#do(async () => {
      try {
        return await statWithTarget(toHostPath(this.#root, path));
      } catch (error) {
        if (["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "")) return undefined;
        throw error;
      }
    });
  }

  mkdir(path: string, options: { mode: number; parents: boolean } & Within): Promise<void> {
    return this.#do(async () => {
      const target = await withRealParent(toHostPath(this.#root, path));
      await this.#requireWithin(target, path, options, "or at");
      const there = await stat(target).catch(() => undefined);
      if (options.parents && there?.isDirectory() === true) return;
      if (options.parents) await mkdir(dirname(target), { recursive: true });
      await mkdir(target);
      await chmod(target, options.mode);
    });
  }

  move(from: string, to: string, options: { overwrite: boolean } & Within): Promise<void> {
    return this.#do(async () => {
      const source = await withRealParent(toHostPath(this.#root, from));
      const target = await withRealParent(toHostPath(this.#root, to));
      await this.#requireWithin(source, from, options);
      await this.#requireWithin(target, to, options);
      await lstat(source);
      if (!options.overwrite && (await lstat(target).catch(() => undefined)) !== undefined) {
        throw new RuntimeError("exists", `${to} exists`);
      }
      await mkdir(dirname(target), { recursive: true, mode: 0o755 });
      await rename(source, target);
    });
  }

  remove(path: string, options: { recursive?: boolean } & Within): Promise<void> {
    return this.#do(async () => {
      const target = await withRealParent(toHostPath(this.#root, path));
      await this.#requireWithin(target, path, options);
      const isDirectory = (await lstat(target)).isDirectory();
      if (isDirectory && options.recursive !== true)
        throw new RuntimeError("is_directory", `${path} is a directory`);
      if (isDirectory) await rm(target, { recursive: true });
      else await unlink(target);
    });
  }

  watch(
    path: string,
    options: { recursive: boolean; signal: AbortSignal },
  ): Promise<AsyncIterable<FileChange>> {
    return this.#do(async () => watchDirectory(toHostPath(this.#root, path), path, this.#gate, options));
  }

  startCommand(spec: CommandSpec): Promise<{ pid: number }> {
    return this.#do(() => this.#commands.start(spec, () => this.#start({ ...spec, onDisconnect: "run_on" })));
  }

  listCommands(): Promise<CommandRecord[]> {
    return this.#do(async () => this.#commands.list());
  }

  getCommand(id: string): Promise<CommandRecord> {
    return this.#do(async () => this.#commands.get(id));
  }

  killCommand(id: string): Promise<CommandRecord> {
    return this.#do(async () => this.#commands.kill(id));
  }

  signalCommand(id: string, signal: number): Promise<void> {
    return this.#do(async () => this.#commands.signal(id, signal));
  }

  writeCommandStdin(id: string, data: Buffer, eof: boolean): Promise<void> {
    return this.#do(() => this.#commands.writeStdin(id, data, eof));
  }

  resizeCommand(id: string, size: TerminalSize): Promise<void> {
    return this.#do(async () => this.#commands.resize(id, size));
  }

  commandLogs(id: string, offset: number, limit: number): Promise<CommandLogs> {
    return this.#do(async () => this.#commands.logs(id, offset, limit));
  }

  async *followCommand(
    id: string,
    offset: number,
    signal?: AbortSignal,
  ): AsyncGenerator<CommandChunk, CommandRecord, undefined> {
    await this.#gate();
    return yield* this.#commands.follow(id, offset, signal);
  }

  connect(port: number): Promise<Duplex> {
    return this.#do(async () => {
      const player = this.#played.get(port);
      if (player) {
        const [ours, theirs] = duplexPair();
        player(theirs);
        return ours;
      }
      const socket = connect({ host: "127.0.0.1", port, allowHalfOpen: true });
      try {
        await once(socket, "connect");
      } catch (error) {
        throw new RuntimeError("connection_refused", `nothing listens on port ${port}`, { cause: error });
      }
      socket.on("error", () => {});
      return socket;
    });
  }

  async #do<T>(work: () => Promise<T>): Promise<T> {
    await this.#gate();
    try {
      return await work();
    } catch (error) {
      throw toRuntimeError(error);
    }
  }

  async #requireWithin(target: string, path: string, { roots }: Within, orAt?: "or at"): Promise<void> {
    for (const root of roots) {
      const real = await realpath(toHostPath(this.#root, root)).catch(() => undefined);
      if (real !== undefined && (isBelow(target, real) || (orAt !== undefined && target === real))) return;
    }
    throw new RuntimeError("not_permitted", `${path} is outside the writable directories`);
  }
}

/** Describes a symlink's target, or the symlink itself if the target is missing. */
async function statWithTarget(path: string): Promise<FileStat> {
  const own = await lstat(path);
  if (!own.isSymbolicLink()) return toStat(own);
  const end = await stat(path).catch(() => own);
  return { ...toStat(end), linkTarget: await readlink(path) };
}

function toStat(info: Stats): FileStat {
  return {
    isDir: info.isDirectory(),
    sizeBytes: info.size,
    mode: info.mode & 0o7777,
    modifiedAt: info.mtime,
    uid: info.uid,
    gid: info.gid,
    linkTarget: null,
  };
}

async function toArgv(spec: SpawnSpec): Promise<[string, ...string[]]> {
  if (spec.shell !== undefined) {
    const hasBash = await access("/bin/bash").then(
      () => true,
      () => false,
    );
    return [hasBash ? "/bin/bash" : "/bin/sh", "-c", spec.shell];
  }
  const [program, ...args] = spec.argv ?? [];
  if (program === undefined)
    throw new RuntimeError("exec_failed", "the program to start is missing; set argv or shell");
  return [program, ...args];
}

/** Returns the user from the host's passwd. Any user other than this process's own needs root. */
async function findUser(user: string): Promise<{ name: string; uid: number; gid: number; home: string }> {
  if (user === "root" && process.getuid?.() !== 0) {
    return { name: "root", uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0, home: "/root" };
  }
  for (const line of (await readFile("/etc/passwd", "utf8")).split("\n")) {
    const [name = "", , uid = "", gid = "", , home = "/"] = line.split(":");
    if (name === user || uid === user) return { name, uid: Number(uid), gid: Number(gid), home };
  }
  if (!/^\d+$/.test(user)) throw new RuntimeError("exec_failed", `there is no user ${user}`);
  return { name: user, uid: Number(user), gid: Number(user), home: "/" };
}
