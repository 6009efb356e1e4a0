/**
 * `exec`: runs a command in the session's machine. Returns the command's exit code and the head and tail of its output.
 * The command runs in the background and outlives this server. The call records the command before its start, and the
 * next process waits for the same command. A command is killed when its run ends, at its time limit, and when its call
 * is aborted.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import { DomainError } from "#lib/errors.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { interruptedBySnapshot } from "#machines/errors.ts";
import type { CommandRecord, ProcessExit } from "#machines/host/guest.ts";
import { ask } from "#sandbox/commands/commands.ts";
import { exitOf } from "#sandbox/commands/logs.ts";
import { blameDirectory, killedBy, signalName } from "#sandbox/exec/exec.ts";
import { Exec } from "#sandbox/exec/schema.ts";
import { cutOffByPause } from "#sandbox/sandboxes/errors.ts";
import { reportOutOfMemory } from "#sandbox/sandboxes/machine-events/out-of-memory.ts";
import { processPlace } from "#sandbox/sandboxes/lifecycle/process-defaults.ts";
import { inside } from "#sandbox/sandboxes/sandboxes.ts";
import type { CallCommand } from "#agent/calls/calls.ts";
import type { ToolResult } from "#agent/tools/tool.ts";
import type { MachineCall, Work } from "./machine-call.ts";
import { HeadAndTail } from "./head-and-tail.ts";
import { killCommand, killIfRunEnded } from "../kill-commands.ts";
import type { MachineAccess } from "../machine.ts";

/** Maximum size of each stream, so that a whole tool result stays below 64 KiB. */
const streamMaxBytes = 30 * 1024;
/** Delay between two attempts to follow a command whose machine was snapshotted or paused. */
const againAfterMs = 100;

export const exec: Work = async (app, place, call) => {
  if (call.command) return finish(app, place, call, call.command);
  const input = Exec.safeParse({ command: call.values["command"], timeout_seconds: secondsOf(call) });
  if (!input.success)
    return { isOk: false, text: input.error.issues[0]?.message ?? "The command is invalid." };
  if (call.commandId === null) throw new Error("a call that starts a command has an id for it");
  const { command: shell = "", timeout_seconds: seconds } = input.data;
  const command = { id: call.commandId, sandboxId: place.sandboxId, seconds };
  await call.noteCommand(command);
  await passKillPoint("agent.command.noted");
  return finish(app, place, call, command, shell);
};

/** Returns the requested time limit in seconds, at most the call's remaining time. */
function secondsOf({ values, leftSeconds }: MachineCall): number {
  const wish = values["timeout_seconds"];
  return Math.min(typeof wish === "number" ? wish : leftSeconds, leftSeconds, 3600);
}

/** Starts the command if `shell` is given, and waits for its exit. */
async function finish(
  app: App,
  place: MachineAccess,
  call: MachineCall,
  command: CallCommand,
  shell?: string,
): Promise<ToolResult> {
  try {
    if (shell !== undefined)
      await start(app, place, command, shell).catch((error: unknown) => {
        // The machine may have received the start before the pause, so the next lines search for the command.
        if (!isCutOff(error)) throw error;
      });
    call.signal.throwIfAborted();
    return await waitForEnd(app, place, call, command);
  } catch (error) {
    // The command continues if this server stops, or if another process acquired the run.
    if (call.isLeft()) void killIfRunEnded(app, place.actor, call.id, command);
    else void killCommand(app, place.actor, command);
    throw error;
  }
}

async function start(app: App, { actor }: MachineAccess, command: CallCommand, shell: string): Promise<void> {
  await inside(app, actor, command.sandboxId, async (guest, row) => {
    const spec = { id: command.id, shell, timeoutMs: command.seconds * 1000, ...processPlace(row) };
    await guest.startCommand(spec).catch(blameDirectory);
  });
  await passKillPoint("agent.command.started");
}

/** Waits for the exit of the command. Continues after a pause of the machine, because the command continues too. */
async function waitForEnd(
  app: App,
  place: MachineAccess,
  call: MachineCall,
  command: CallCommand,
): Promise<ToolResult> {
  const output = new Output();
  for (let at: MachineAccess | undefined = place; at;) {
    try {
      const record = await follow(app, at, call, command, output);
      if (!record) return unknown;
      const exit = exitOf(record);
      if (exit.outOfMemory) await reportOutOfMemory(app, command.sandboxId, "exec");
      return answerOf(exit, output, command.seconds);
    } catch (error) {
      if (!isCutOff(error)) throw error;
      await sleep(againAfterMs, undefined, { signal: call.signal });
      if (error.code === cutOffByPause.code) at = await call.findAgain();
    }
  }
  return unknown;
}

const unknown: ToolResult = {
  isOk: false,
  isUnknown: true,
  text:
    "The command was interrupted, and its machine no longer has it. It is not known whether the " +
    "command took effect.",
};

/** Reads the output from the current offset. Returns undefined if the machine does not know the command. */
function follow(
  app: App,
  { actor }: MachineAccess,
  { signal }: MachineCall,
  command: CallCommand,
  output: Output,
): Promise<CommandRecord | undefined> {
  return inside(app, actor, command.sandboxId, async (guest) => {
    if (!(await ask(() => guest.getCommand(command.id)))) return undefined;
    // Closes the command's input. An earlier process may have stopped before it closed the input.
    await guest.writeCommandStdin(command.id, Buffer.alloc(0), true).catch(() => {});
    const chunks = guest.followCommand(command.id, output.offset, signal);
    for (;;) {
      const step = await chunks.next();
      if (step.done) return step.value;
      output.add(step.value);
    }
  });
}

function isCutOff(error: unknown): error is DomainError {
  return (
    error instanceof DomainError &&
    (error.code === interruptedBySnapshot.code || error.code === cutOffByPause.code)
  );
}

/** Head and tail of both streams, and the read offset. */
class Output {
  readonly stdout = new HeadAndTail(streamMaxBytes);
  readonly stderr = new HeadAndTail(streamMaxBytes);
  offset = 0;
  /** Number of bytes that the machine dropped before they were read. The machine keeps the last 16 MiB. */
  droppedBytes = 0;

  add({ stream, offset, data }: { stream: "stdout" | "stderr"; offset: number; data: Buffer }): void {
    this.droppedBytes += Math.max(0, offset - this.offset);
    this.offset = offset + data.length;
    this[stream].add(data);
  }
}

function answerOf(exit: ProcessExit, output: Output, seconds: number): ToolResult {
  const dropped = output.droppedBytes > 0 ? `\n[${output.droppedBytes} bytes of output were not kept]` : "";
  const text = (first: string) => textOf(`${first}${dropped}`, output);
  // The text names the cause, so that the model can retry with less memory.
  const why = killedBy(exit) === "out_of_memory" ? " (the machine ran out of memory)" : "";
  if (exit.timedOut) return { isOk: false, text: text(`The command was killed after ${seconds} s.`) };
  const signal = signalName(exit.signal);
  return {
    isOk: true,
    text: text(signal === null ? `exit code: ${exit.code ?? 0}${why}` : `killed by ${signal}${why}`),
  };
}

/** Returns the text with both streams. Omits empty streams. */
export function textOf(
  first: string,
  { stdout, stderr }: { stdout: HeadAndTail; stderr: HeadAndTail },
): string {
  return [
    first,
    ...(stdout.isEmpty ? [] : [`stdout:\n${stdout.text()}`]),
    ...(stderr.isEmpty ? [] : [`stderr:\n${stderr.text()}`]),
  ].join("\n");
}
