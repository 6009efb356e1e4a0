/**
 * Requests to a machine's guest, as calls. Each call is one connection and one exchange of frames. Every end of a call,
 * with or without an error, closes the connection. Every wait for the guest has a deadline. The output of a process or
 * of a followed command is the exception, because it may be silent for any time.
 */
import { Readable } from "node:stream";
import type { Duplex } from "node:stream";
import type {
  CommandChunk,
  CommandLogs,
  CommandRecord,
  CommandSpec,
  DirEntry,
  FileChange,
  FileStat,
  Guest,
  GuestProcess,
  ListPage,
  ReadOptions,
  Resources,
  SpawnSpec,
  TerminalSize,
  Within,
} from "../driver.ts";
import { RuntimeError } from "../driver.ts";
import type { GuestConnections } from "./connections.ts";
import { Exchange, parse } from "./exchange.ts";
import { MAX_FRAME_BYTES, protocolError } from "./frames.ts";
import { RunningProcess } from "./process.ts";
import {
  PROTOCOL_VERSION,
  REPLIES,
  REQUESTS,
  SENT,
  encodeRequest,
  parseBlocker,
  parseChange,
  parseChunk,
  parseCommand,
  parseDone,
  parseEntry,
  parseMeta,
  parsePong,
  parseStarted,
  requirePath,
  toEntries,
} from "./protocol.ts";
import type { CheckpointBlocker, Fields } from "./protocol.ts";

/** Deadline of a small reply that the guest makes from memory. */
const REPLY_MS = 5000;
/** Deadline of a request that uses the machine's disk or starts a program, on a busy host. */
const WORK_MS = 30_000;
/** Deadline of the removal of a tree: enough for a hundred thousand files. */
const REMOVE_TREE_MS = 10 * 60_000;
const MAX_ENTRIES = 10_000;
/** Limit of a list of commands. The guest keeps 100 finished commands and runs 128. */
const MAX_COMMANDS = 1000;
const MAX_BLOCKERS = 1000;

/** Returns a page of the entries. Compares names in byte order, as the guest does. */
export function cutPage<Entry extends { name: string }>(
  entries: readonly Entry[],
  { limit, after }: ListPage,
): Entry[] {
  const start = after === undefined ? undefined : Buffer.from(after);
  return entries
    .map((entry) => ({ entry, bytes: Buffer.from(entry.name) }))
    .filter(({ bytes }) => start === undefined || bytes.compare(start) > 0)
    .toSorted((one, other) => one.bytes.compare(other.bytes))
    .slice(0, limit)
    .map(({ entry }) => entry);
}

export class GuestClient implements Guest {
  readonly #connections: GuestConnections;

  constructor(connections: GuestConnections) {
    this.#connections = connections;
  }

  // ---- the machine

  async ping(): Promise<void> {
    await this.hello();
  }

  /** Returns the guest's build. Fails with `host_unsupported` for another version of the protocol. */
  async hello(): Promise<{ version: number; build: string }> {
    const pong = await this.#request(REQUESTS.PING, {}, REPLIES.PONG, REPLY_MS, parsePong);
    if (pong.version !== PROTOCOL_VERSION)
      throw new RuntimeError(
        "host_unsupported",
        `the guest uses version ${pong.version} of the protocol; this server needs version ${PROTOCOL_VERSION}`,
      );
    return pong;
  }

  /** Names the machine and replaces the base environment of its processes. Repeatable. */
  async configure(spec: { hostname: string; env: Record<string, string> }): Promise<void> {
    const fields = { hostname: spec.hostname, env: toEntries(spec.env) };
    await this.#request(REQUESTS.CONFIGURE, fields, REPLIES.OK, WORK_MS, nothing);
  }

  /**
   * Sets the memory that the machine's processes may use together, and the number of processors that they
   * see. Beyond the memory, PID 1 kills the largest process. Guests of older servers ignore the processors,
   * or do not know the request at all: then the kernel kills the whole machine.
   */
  async limit({ memoryBytes, vcpus }: Pick<Resources, "memoryBytes" | "vcpus">): Promise<void> {
    const limits = { memory: memoryBytes, cpus: Math.max(1, Math.ceil(vcpus)) };
    await this.#request(REQUESTS.LIMIT, limits, REPLIES.OK, REPLY_MS, nothing).catch((error: unknown) => {
      if (!(error instanceof RuntimeError && error.kind === "guest_protocol")) throw error;
    });
  }

  /**
   * Lists the obstacles to a checkpoint: deleted files in use on the volume, and connections out of the
   * machine.
   */
  async checkpointBlockers(): Promise<CheckpointBlocker[]> {
    return this.#collect(REQUESTS.BLOCKERS, {}, REPLIES.BLOCKER, MAX_BLOCKERS, parseBlocker);
  }

  // ---- processes

  async spawn(spec: SpawnSpec): Promise<GuestProcess> {
    const kill = spec.onDisconnect === "kill" ? 1 : 0;
    const exchange = await this.#begin(REQUESTS.SPAWN, { ...toSpawn(spec), kill_on_disconnect: kill });
    const { pid } = parse(exchange, await exchange.expect(REPLIES.STARTED, WORK_MS), parseStarted);
    return new RunningProcess(exchange, pid, (of, signal) => this.#signal(of, signal));
  }

  async #signal(pid: number, signal: number): Promise<void> {
    await this.#request(REQUESTS.SIGNAL, { pid, signal }, REPLIES.OK, REPLY_MS, nothing);
  }

  // ---- files

  async readFile(
    path: string,
    { maxBytes, offset, length }: ReadOptions = {},
  ): Promise<{ stat: FileStat; content: Readable }> {
    const fields = { path: requirePath(path), max_bytes: maxBytes, offset, limit: length };
    const exchange = await this.#begin(REQUESTS.READ, fields);
    const stat = parse(exchange, await exchange.expect(REPLIES.META, WORK_MS), parseMeta);
    return { stat, content: toReadable(exchange, Math.min(maxBytes ?? Infinity, length ?? Infinity)) };
  }

  async writeFile(
    path: string,
    content: Buffer | AsyncIterable<Buffer>,
    options: { mode: number } & Within,
  ): Promise<{ sizeBytes: number }> {
    const fields = { path: requirePath(path), mode: options.mode, root: options.roots };
    const exchange = await this.#begin(REQUESTS.WRITE, fields);
    try {
      // A reply before the end is always a refusal, so the rest is not sent.
      for await (const piece of pieces(content)) {
        if (exchange.hasAnswer) break;
        await exchange.send(SENT.UPLOAD, piece, WORK_MS);
      }
      if (!exchange.hasAnswer) await exchange.send(SENT.UPLOAD_END, undefined, WORK_MS);
      return parseDone(await exchange.expect(REPLIES.DONE, WORK_MS));
    } finally {
      exchange.destroy();
    }
  }

  async list(path: string, page?: ListPage): Promise<DirEntry[]> {
    const fields = { path: requirePath(path), limit: page?.limit, after: page?.after };
    const entries = await this.#collect(REQUESTS.LIST, fields, REPLIES.ENTRY, MAX_ENTRIES + 1, (payload) => {
      const entry = parseEntry(payload);
      if (entry.name === "" || entry.name.includes("/"))
        throw protocolError("a directory entry without a name");
      return entry;
    });
    // An older guest sends no owner, ignores the page and sends all entries.
    const isWhole = page !== undefined && entries.some(({ uid }) => uid === null);
    return isWhole ? cutPage(entries, page) : entries.slice(0, page?.limit);
  }

  async stat(path: string): Promise<FileStat | undefined> {
    try {
      return await this.#request(
        REQUESTS.STAT,
        { path: requirePath(path) },
        REPLIES.META,
        WORK_MS,
        parseMeta,
      );
    } catch (error) {
      const nothingThere = ["path_not_found", "not_directory"];
      if (error instanceof RuntimeError && nothingThere.includes(error.kind)) return undefined;
      throw error;
    }
  }

  async mkdir(path: string, options: { mode: number; parents: boolean } & Within): Promise<void> {
    const fields = {
      path: requirePath(path),
      mode: options.mode,
      parents: options.parents ? 1 : 0,
      root: options.roots,
    };
    await this.#request(REQUESTS.MKDIR, fields, REPLIES.OK, WORK_MS, nothing);
  }

  async move(from: string, to: string, options: { overwrite: boolean } & Within): Promise<void> {
    const fields = {
      path: requirePath(from),
      to: requirePath(to),
      overwrite: options.overwrite ? 1 : 0,
      root: options.roots,
    };
    await this.#request(REQUESTS.MOVE, fields, REPLIES.OK, WORK_MS, nothing);
  }

  async remove(path: string, options: { recursive?: boolean } & Within): Promise<void> {
    const { roots: root, recursive = false } = options;
    const fields = { path: requirePath(path), recursive: recursive ? 1 : undefined, root };
    const timeoutMs = recursive ? REMOVE_TREE_MS : WORK_MS;
    await this.#request(REQUESTS.REMOVE, fields, REPLIES.OK, timeoutMs, nothing);
  }

  async watch(
    path: string,
    { recursive, signal }: { recursive: boolean; signal: AbortSignal },
  ): Promise<AsyncIterable<FileChange>> {
    const fields = { path: requirePath(path), recursive: recursive ? 1 : 0 };
    const exchange = await this.#begin(REQUESTS.WATCH, fields);
    await exchange.expect(REPLIES.OK, WORK_MS);
    // The listener also closes the connection of a stream that is never read.
    signal.addEventListener("abort", () => exchange.destroy(), { once: true });
    return changes(exchange, signal);
  }

  // ---- ports

  async connect(port: number): Promise<Duplex> {
    const exchange = await this.#begin(REQUESTS.TUNNEL, { port });
    await exchange.expect(REPLIES.OK, WORK_MS);
    return exchange.toStream();
  }

  // ---- background commands

  async startCommand(spec: CommandSpec): Promise<{ pid: number }> {
    const fields = { ...toSpawn(spec), command_id: spec.id, tag: spec.tag, ...spec.terminal };
    return this.#request(REQUESTS.SPAWN, fields, REPLIES.STARTED, WORK_MS, parseStarted);
  }

  async listCommands(): Promise<CommandRecord[]> {
    return this.#collect(REQUESTS.COMMAND_LIST, {}, REPLIES.COMMAND, MAX_COMMANDS, parseCommand);
  }

  async getCommand(id: string): Promise<CommandRecord> {
    return this.#request(REQUESTS.COMMAND_GET, { command_id: id }, REPLIES.COMMAND, REPLY_MS, parseCommand);
  }

  async killCommand(id: string): Promise<CommandRecord> {
    return this.#request(REQUESTS.COMMAND_KILL, { command_id: id }, REPLIES.COMMAND, REPLY_MS, parseCommand);
  }

  async signalCommand(id: string, signal: number): Promise<void> {
    const { status, pid } = await this.getCommand(id);
    if (status !== "running") return;
    await this.#signal(pid, signal).catch((error: unknown) => {
      // The command ended between the two calls.
      if (!(error instanceof RuntimeError && error.kind === "not_found")) throw error;
    });
  }

  async writeCommandStdin(id: string, data: Buffer, eof: boolean): Promise<void> {
    for (let at = 0; at === 0 || at < data.length; at += MAX_FRAME_BYTES) {
      const last = at + MAX_FRAME_BYTES >= data.length;
      const fields = {
        command_id: id,
        data: data.subarray(at, at + MAX_FRAME_BYTES),
        eof: eof && last ? 1 : 0,
      };
      await this.#request(REQUESTS.COMMAND_STDIN, fields, REPLIES.OK, WORK_MS, nothing);
    }
  }

  async resizeCommand(id: string, { cols, rows }: TerminalSize): Promise<void> {
    const fields = { command_id: id, cols, rows };
    await this.#request(REQUESTS.COMMAND_RESIZE, fields, REPLIES.OK, REPLY_MS, nothing);
  }

  async commandLogs(id: string, offset: number, limit: number): Promise<CommandLogs> {
    const exchange = await this.#begin(REQUESTS.COMMAND_LOGS, { command_id: id, offset, limit });
    try {
      const chunks: CommandChunk[] = [];
      let bytes = 0;
      for (;;) {
        const frame = await exchange.next(WORK_MS);
        if (frame.type === REPLIES.COMMAND) {
          await exchange.expect(REPLIES.END, WORK_MS);
          const last = chunks.at(-1);
          return {
            chunks,
            nextOffset: last ? last.offset + last.data.length : offset,
            command: parseCommand(frame.payload),
          };
        }
        if (frame.type !== REPLIES.CHUNK) throw exchange.refuse(frame);
        const chunk = parseChunk(frame.payload);
        bytes += chunk.data.length;
        if (bytes > limit || chunk.data.length === 0) throw protocolError("more output than was asked for");
        chunks.push(chunk);
      }
    } finally {
      exchange.destroy();
    }
  }

  async *followCommand(
    id: string,
    offset: number,
    signal?: AbortSignal,
  ): AsyncGenerator<CommandChunk, CommandRecord, undefined> {
    const exchange = await this.#begin(REQUESTS.COMMAND_LOGS, { command_id: id, offset, follow: 1 });
    // A waiting generator cannot be ended from outside. Without the listener, a silent command would keep its reader's
    // connection.
    const letGo = (): void => exchange.destroy();
    signal?.addEventListener("abort", letGo, { once: true });
    try {
      for (;;) {
        signal?.throwIfAborted();
        const frame = await exchange.next(null);
        if (frame.type === REPLIES.CHUNK) yield parseChunk(frame.payload);
        else if (frame.type === REPLIES.COMMAND) return parseCommand(frame.payload);
        else throw exchange.refuse(frame);
      }
    } catch (error) {
      throw signal?.aborted ? signal.reason : error;
    } finally {
      signal?.removeEventListener("abort", letGo);
      exchange.destroy();
    }
  }

  // ---- the three forms of a request: with a stream, with one reply, with a list

  #begin(type: number, fields: Fields): Promise<Exchange> {
    return Exchange.begin(this.#connections, encodeRequest(type, fields));
  }

  async #request<T>(
    type: number,
    fields: Fields,
    reply: number,
    timeoutMs: number,
    parser: (payload: Buffer) => T,
  ): Promise<T> {
    const exchange = await this.#begin(type, fields);
    try {
      return parser(await exchange.expect(reply, timeoutMs));
    } finally {
      exchange.destroy();
    }
  }

  async #collect<T>(
    type: number,
    fields: Fields,
    item: number,
    limit: number,
    parser: (payload: Buffer) => T,
  ): Promise<T[]> {
    const exchange = await this.#begin(type, fields);
    try {
      const items: T[] = [];
      for (;;) {
        const frame = await exchange.next(WORK_MS);
        if (frame.type === REPLIES.END) return items;
        if (frame.type !== item) throw exchange.refuse(frame);
        if (items.length >= limit) throw protocolError(`more than ${limit} entries`);
        items.push(parser(frame.payload));
      }
    } finally {
      exchange.destroy();
    }
  }
}

function nothing(): void {}

function toSpawn(spec: Omit<SpawnSpec, "onDisconnect">): Fields {
  return {
    argv: spec.argv,
    shell: spec.shell,
    cwd: spec.cwd,
    env: spec.env && toEntries(spec.env),
    user: spec.user,
    timeout_ms: spec.timeoutMs,
  };
}

/** Splits content into pieces that fit in a frame, without copying. */
async function* pieces(content: Buffer | AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  for await (const part of Buffer.isBuffer(content) ? [content] : content)
    for (let at = 0; at < part.length; at += MAX_FRAME_BYTES) yield part.subarray(at, at + MAX_FRAME_BYTES);
}

async function* changes(exchange: Exchange, signal: AbortSignal): AsyncGenerator<FileChange> {
  try {
    for (;;) {
      signal.throwIfAborted();
      const frame = await exchange.next(null);
      if (frame.type === REPLIES.END) return;
      if (frame.type !== REPLIES.CHANGE) throw exchange.refuse(frame);
      yield parseChange(frame.payload);
    }
  } catch (error) {
    throw signal.aborted ? signal.reason : error;
  } finally {
    exchange.destroy();
  }
}

/** Returns a stream of a file's content. Destroying the stream ends the exchange, also before the first read. */
function toReadable(exchange: Exchange, maxBytes: number): Readable {
  let bytes = 0;
  const readNext = async (): Promise<Buffer | null> => {
    for (;;) {
      const frame = await exchange.next(WORK_MS);
      if (frame.type === REPLIES.END) return null;
      if (frame.type !== REPLIES.DATA) throw exchange.refuse(frame);
      bytes += frame.payload.length;
      if (bytes > maxBytes) throw protocolError("more content than was asked for");
      if (frame.payload.length > 0) return frame.payload;
    }
  };
  return new Readable({
    highWaterMark: MAX_FRAME_BYTES,
    read() {
      readNext().then(
        (piece) => this.push(piece),
        (error: Error) => this.destroy(error),
      );
    },
    destroy(error, done) {
      exchange.destroy();
      done(error);
    },
  });
}
