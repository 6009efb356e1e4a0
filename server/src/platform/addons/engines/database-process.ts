/**
 * The database process in its machine: prepare, start, wait for its first response, stop. Add-ons and throwaway
 * instances share this code.
 */
import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { newId } from "#lib/ids.ts";
import type { CommandRecord, Guest } from "#machines/host/guest.ts";
import type { Engine, Instance, Room } from "./engine.ts";
import { EngineFailure } from "../errors.ts";

const tag = "addon";
/** Time limit of the first response. Replaying the log of a large database after a crash may take long. */
const answersWithinMs = 10 * 60_000;
const firstPauseMs = 10;
const lastPauseMs = 500;
const endsWithinMs = 30_000;

/** Returns the id of the running process in the machine; undefined if none runs. */
export async function findProcess(guest: Guest): Promise<string | undefined> {
  const commands = await guest.listCommands();
  return commands.find((command) => command.tag === tag && command.status === "running")?.id;
}

/** Prepares the files and starts the process; `waitUntilResponsive` waits for its first response. */
export async function startProcess(
  guest: Guest,
  engine: Engine,
  instance: Instance,
): Promise<{ command: string; room: Room }> {
  const room = await engine.prepare(guest, instance);
  const command = newId("db_");
  await guest.startCommand({ id: command, tag, ...engine.command });
  return { command, room };
}

/** Resolves when a query succeeds. Rejects with the process's last output if the process has ended. */
export async function waitUntilResponsive(
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
    if (record.status !== "running") throw new EngineFailure(await describeFailure(guest, record));
    if (performance.now() > deadline) throw new EngineFailure("The database did not respond in time.");
    await sleep(pauseMs, undefined, { signal, ref: false });
  }
}

/** Stops the process with the engine's signal, and after a while with SIGKILL. Resolves once the process has ended. */
export async function stopProcess(guest: Guest, engine: Engine, command: string): Promise<void> {
  await guest.signalCommand(command, engine.stopSignal);
  if (await hasEnded(guest, command, endsWithinMs)) return;
  await guest.signalCommand(command, constants.signals.SIGKILL);
  if (!(await hasEnded(guest, command, endsWithinMs)))
    throw new EngineFailure("The process could not be stopped.");
}

export function describeExit({ exitCode, signal }: CommandRecord): string {
  if (signal === null) return `The process ended with exit code ${exitCode}.`;
  return signal === constants.signals.SIGKILL
    ? "The process was killed (signal 9), most likely because the machine's memory was full."
    : `The process was ended by signal ${signal}.`;
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

async function describeFailure(guest: Guest, record: CommandRecord): Promise<string> {
  const { outputBytes, id } = record;
  const { chunks } = await guest.commandLogs(id, Math.max(0, outputBytes - 2000), 2000);
  const text = Buffer.concat(chunks.map(({ data }) => data)).toString("utf8");
  const last = text.trim().split("\n").slice(-3).join(" ").slice(-500);
  return last === "" ? describeExit(record) : `${describeExit(record)} Last output: ${last}`;
}
