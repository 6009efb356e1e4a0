/**
 * A database's process in its machine: put in order, started, asked until it answers, and ended. What is done here is
 * the same for an add-on and for an instance that lives only for a moment.
 */
import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { newId } from "#lib/ids.ts";
import type { CommandRecord, Guest } from "#machines/host/guest.ts";
import type { Engine, Instance, Room } from "./engine.ts";
import { EngineFailure } from "../errors.ts";

const tag = "addon";
/** The log of a large database may take long to be read again after a crash. */
const answersWithinMs = 10 * 60_000;
const firstPauseMs = 10;
const lastPauseMs = 500;
const endsWithinMs = 30_000;

/** The process that runs in a machine, by what it is called there. */
export async function findProcess(guest: Guest): Promise<string | undefined> {
  const commands = await guest.listCommands();
  return commands.find((command) => command.tag === tag && command.status === "running")?.id;
}

/** Its files are in order and it is begun; whether it answers is to be seen. */
export async function begin(
  guest: Guest,
  engine: Engine,
  instance: Instance,
): Promise<{ command: string; room: Room }> {
  const room = await engine.prepare(guest, instance);
  const command = newId("db_");
  await guest.startCommand({ id: command, tag, ...engine.command });
  return { command, room };
}

/** Until it answers a query. Fails where it has ended instead, with what it said last. */
export async function untilAnswers(
  guest: Guest,
  engine: Engine,
  instance: Instance,
  command: string,
  signal: AbortSignal,
): Promise<Room> {
  const deadline = performance.now() + answersWithinMs;
  for (let pauseMs = firstPauseMs; ; pauseMs = Math.min(lastPauseMs, pauseMs * 1.3)) {
    signal.throwIfAborted();
    if (await isListening(guest, engine.port)) {
      const room = await engine.health(guest, instance).catch((error: unknown) => {
        if (!(error instanceof EngineFailure)) throw error;
      });
      if (room) return room;
    }
    const record = await guest.getCommand(command);
    if (record.status !== "running") throw new EngineFailure(await lastWords(guest, record));
    if (performance.now() > deadline) throw new EngineFailure("It did not answer in time.");
    await sleep(pauseMs, undefined, { signal, ref: false });
  }
}

/** In order first, then by force. Returns when it has ended. */
export async function end(guest: Guest, engine: Engine, command: string): Promise<void> {
  await guest.signalCommand(command, engine.stopSignal);
  if (await hasEnded(guest, command, endsWithinMs)) return;
  await guest.signalCommand(command, constants.signals.SIGKILL);
  if (!(await hasEnded(guest, command, endsWithinMs))) throw new EngineFailure("It could not be ended.");
}

export function saidOf({ exitCode, signal }: CommandRecord): string {
  if (signal === null) return `It ended with exit code ${exitCode}.`;
  return signal === constants.signals.SIGKILL
    ? "It was killed (signal 9), most likely because its memory was used up."
    : `It was ended by signal ${signal}.`;
}

async function hasEnded(guest: Guest, command: string, withinMs: number): Promise<boolean> {
  const deadline = performance.now() + withinMs;
  while (performance.now() < deadline) {
    const { status } = await guest.getCommand(command);
    if (status !== "running") return true;
    await sleep(20, undefined, { ref: false });
  }
  return false;
}

async function isListening(guest: Guest, port: number): Promise<boolean> {
  const connection = await guest.connect(port).catch(() => undefined);
  connection?.destroy();
  return connection !== undefined;
}

async function lastWords(guest: Guest, record: CommandRecord): Promise<string> {
  const { outputBytes, id } = record;
  const { chunks } = await guest.commandLogs(id, Math.max(0, outputBytes - 2000), 2000);
  const text = Buffer.concat(chunks.map(({ data }) => data)).toString("utf8");
  const last = text.trim().split("\n").slice(-3).join(" ").slice(-500);
  return last === "" ? saidOf(record) : `${saidOf(record)} It said last: ${last}`;
}
