/**
 * Background commands of a fake machine: kept like those of the real guest, but lost with the driver's
 * process.
 */
import { constants } from "node:os";
import {
  RuntimeError,
  type CommandChunk,
  type CommandLogs,
  type CommandRecord,
  type CommandSpec,
  type TerminalSize,
} from "../driver.ts";
import type { FakeProcess } from "./process.ts";

const RING_BYTES = 16 * 1024 * 1024;
const RUNNING_LIMIT = 128;
const FINISHED_LIMIT = 100;
const FOLLOWER_LIMIT = 16;
const TERMINAL_LIMIT = 16;
/** Number of bytes by which a terminal's output may lead its slowest reader. */
const LEAD_BYTES = 256 * 1024;
const KILL_AFTER_MS = 5000;

interface FakeCommand {
  record: CommandRecord;
  process: FakeProcess;
  chunks: CommandChunk[];
  /** Offset up to which each follower has read. */
  followers: Set<{ at: number }>;
  /** Replaced after every change. */
  changed: PromiseWithResolvers<void>;
  died: boolean;
}

export class FakeCommands {
  /** Commands by id, oldest first. */
  readonly #commands = new Map<string, FakeCommand>();
  readonly #killed = new Set<string>();
  readonly #starting: CommandSpec[] = [];

  async start(spec: CommandSpec, spawn: () => Promise<FakeProcess>): Promise<{ pid: number }> {
    if (this.#commands.has(spec.id) || this.#starting.some(({ id }) => id === spec.id))
      throw new RuntimeError("exists", `command ${spec.id} exists`);
    const running = [...this.#commands.values()]
      .map(({ record }) => record)
      .filter(({ status }) => status === "running");
    if (running.length >= RUNNING_LIMIT)
      throw new RuntimeError("too_many_processes", `${running.length} background commands are running`);
    const terminals = [...running, ...this.#starting].filter(({ terminal }) => terminal).length;
    if (spec.terminal && terminals >= TERMINAL_LIMIT)
      throw new RuntimeError("too_many_processes", `${terminals} terminals are open`);
    this.#starting.push(spec);
    const process = await spawn().finally(() => this.#starting.splice(this.#starting.indexOf(spec), 1));
    const command: FakeCommand = {
      record: {
        id: spec.id,
        tag: spec.tag ?? "",
        text: Buffer.from(spec.shell ?? spec.argv?.join(" ") ?? "")
          .subarray(0, 4095)
          .toString(),
        status: "running",
        pid: process.pid,
        exitCode: null,
        signal: null,
        timedOut: false,
        outOfMemory: false,
        startedAt: new Date(),
        endedAt: null,
        outputBytes: 0,
        droppedBytes: 0,
        terminal: spec.terminal ?? null,
      },
      process,
      chunks: [],
      followers: new Set(),
      changed: Promise.withResolvers(),
      died: false,
    };
    this.#commands.set(spec.id, command);
    void this.#keep(command);
    return { pid: process.pid };
  }

  list(): CommandRecord[] {
    return Array.from(this.#commands.values(), ({ record }) => ({ ...record })).toReversed();
  }

  get(id: string): CommandRecord {
    return { ...this.#find(id).record };
  }

  kill(id: string): CommandRecord {
    const { record, process } = this.#find(id);
    if (record.status === "running" && !this.#killed.has(id)) {
      this.#killed.add(id);
      process.signal(record.terminal ? constants.signals.SIGHUP : constants.signals.SIGTERM);
      const timer = setTimeout(() => process.signal(constants.signals.SIGKILL), KILL_AFTER_MS).unref();
      void process.ended.then(() => clearTimeout(timer));
    }
    return { ...record };
  }

  signal(id: string, signal: number): void {
    const { record, process } = this.#find(id);
    if (record.status === "running") process.signal(signal);
  }

  async writeStdin(id: string, data: Buffer, eof: boolean): Promise<void> {
    const { record, process } = this.#find(id);
    if (record.status !== "running")
      throw new RuntimeError("not_running", "the command accepts no more input");
    await process.writeStdin(data);
    if (eof) process.endStdin();
  }

  resize(id: string, size: TerminalSize): void {
    const { record, process } = this.#find(id);
    if (record.terminal === null) throw new RuntimeError("guest_protocol", "the command has no terminal");
    if (record.status !== "running") throw new RuntimeError("not_running", "the terminal is closed");
    record.terminal = size;
    process.resize(size);
  }

  logs(id: string, offset: number, limit: number): CommandLogs {
    const command = this.#find(id);
    const chunks: CommandChunk[] = [];
    let left = limit;
    for (const chunk of from(command, offset)) {
      if (left <= 0) break;
      chunks.push({ ...chunk, data: chunk.data.subarray(0, left) });
      left -= chunk.data.length;
    }
    const last = chunks.at(-1);
    const nextOffset = last === undefined ? offset : last.offset + last.data.length;
    return { chunks, nextOffset, command: { ...command.record } };
  }

  async *follow(
    id: string,
    offset: number,
    signal?: AbortSignal,
  ): AsyncGenerator<CommandChunk, CommandRecord, undefined> {
    const command = this.#find(id);
    if (command.followers.size >= FOLLOWER_LIMIT)
      throw new RuntimeError("no_capacity", "too many readers follow this command");
    const aborted = Promise.withResolvers<void>();
    const abort = (): void => aborted.resolve();
    signal?.addEventListener("abort", abort, { once: true });
    const follower = { at: offset };
    command.followers.add(follower);
    try {
      for (;;) {
        signal?.throwIfAborted();
        const { changed } = command;
        const [next] = from(command, follower.at);
        if (next !== undefined) {
          yield next;
          follower.at = next.offset + next.data.length;
          notifyFollowers(command);
        } else if (command.died) throw new RuntimeError("machine_died", "the machine ended");
        else if (command.record.status !== "running") return { ...command.record };
        else await Promise.race([changed.promise, aborted.promise]);
      }
    } finally {
      command.followers.delete(follower);
      notifyFollowers(command);
      signal?.removeEventListener("abort", abort);
    }
  }

  async #keep(command: FakeCommand): Promise<void> {
    const { record, process } = command;
    let isOver = false;
    void process.ended.then(() => {
      isOver = true;
      notifyFollowers(command);
    });
    try {
      for await (const { stream, data } of process.output) {
        command.chunks.push({ stream, data, offset: record.outputBytes });
        record.outputBytes += data.length;
        while (record.outputBytes - record.droppedBytes > RING_BYTES)
          record.droppedBytes += command.chunks.shift()?.data.length ?? 0;
        notifyFollowers(command);
        while (isAhead(command) && !isOver) await command.changed.promise;
      }
      const { code, signal, timedOut } = await process.exit;
      Object.assign(record, { exitCode: code, signal, timedOut, endedAt: new Date() });
      record.status = this.#killed.has(record.id) ? "killed" : "exited";
      this.#prune();
    } catch {
      command.died = true;
    }
    notifyFollowers(command);
  }

  #prune(): void {
    const finished = [...this.#commands.values()].filter(({ record }) => record.status !== "running");
    for (const { record } of finished.slice(0, -FINISHED_LIMIT)) this.#commands.delete(record.id);
  }

  #find(id: string): FakeCommand {
    const command = this.#commands.get(id);
    if (command === undefined) throw new RuntimeError("not_found", "no such command");
    return command;
  }
}

function isAhead({ record, followers }: FakeCommand): boolean {
  if (record.terminal === null) return false;
  return Array.from(followers).some(({ at }) => record.outputBytes - at > LEAD_BYTES);
}

function* from(command: FakeCommand, offset: number): Generator<CommandChunk> {
  for (const chunk of command.chunks) {
    const skip = offset - chunk.offset;
    if (skip < chunk.data.length)
      yield skip <= 0 ? chunk : { ...chunk, offset, data: chunk.data.subarray(skip) };
  }
}

function notifyFollowers(command: FakeCommand): void {
  command.changed.resolve();
  command.changed = Promise.withResolvers();
}
