/**
 * `exec`: a command in the session's machine, with its exit code and the ends of its output. The machine runs it in the
 * background, so that it outlives this server: the call notes the command before it starts, and the next process waits
 * for the same one. A command is killed when its run is over, when its time is up, and when its call gives it up.
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
import type { ToolAnswer } from "#agent/tools/tool.ts";
import type { MachineCall, Work } from "./machine-call.ts";
import { Ends } from "./head-and-tail.ts";
import { killCommand, killIfRunEnded } from "../kill-commands.ts";
import type { Place } from "../machine.ts";

/** Of each stream: with what is said around them a result stays below 64 KiB. */
const streamMaxBytes = 30 * 1024;
/** Between two attempts to follow a command whose machine was snapshotted or paused. */
const againAfterMs = 100;

export const exec: Work = async (app, place, call) => {
  if (call.command) return finish(app, place, call, call.command);
  const input = Exec.safeParse({ command: call.values["command"], timeout_seconds: secondsOf(call) });
  if (!input.success) return { isOk: false, text: input.error.issues[0]?.message ?? "That is no command." };
  if (call.commandId === null) throw new Error("a call that starts a command has an id for it");
  const { command: shell = "", timeout_seconds: seconds } = input.data;
  const command = { id: call.commandId, sandboxId: place.sandboxId, seconds };
  await call.noteCommand(command);
  await passKillPoint("agent.command.noted");
  return finish(app, place, call, command, shell);
};

/** Its own wish within what is left of the call. */
function secondsOf({ values, leftSeconds }: MachineCall): number {
  const wish = values["timeout_seconds"];
  return Math.min(typeof wish === "number" ? wish : leftSeconds, leftSeconds, 3600);
}

/** Starts the command if there is a `shell` line, and waits for its end. */
async function finish(
  app: App,
  place: Place,
  call: MachineCall,
  command: CallCommand,
  shell?: string,
): Promise<ToolAnswer> {
  try {
    if (shell !== undefined)
      await start(app, place, command, shell).catch((error: unknown) => {
        // The machine may have got the start before the pause, so it is asked for the command.
        if (!isCutOff(error)) throw error;
      });
    call.signal.throwIfAborted();
    return await waitForEnd(app, place, call, command);
  } catch (error) {
    // After a stop of this server, or for a process that took the run over, the command goes on.
    if (call.isLeft()) void killIfRunEnded(app, place.actor, call.id, command);
    else void killCommand(app, place.actor, command);
    throw error;
  }
}

async function start(app: App, { actor }: Place, command: CallCommand, shell: string): Promise<void> {
  await inside(app, actor, command.sandboxId, async (guest, row) => {
    const spec = { id: command.id, shell, timeoutMs: command.seconds * 1000, ...processPlace(row) };
    await guest.startCommand(spec).catch(blameDirectory);
  });
  await passKillPoint("agent.command.started");
}

/** Also after a pause: the command went on from where it was. */
async function waitForEnd(
  app: App,
  place: Place,
  call: MachineCall,
  command: CallCommand,
): Promise<ToolAnswer> {
  const output = new Output();
  for (let at: Place | undefined = place; at;) {
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

const unknown: ToolAnswer = {
  isOk: false,
  isUnknown: true,
  text: "The command was cut off, and its machine does not have it; whether it took effect is not known.",
};

/** Reads the output from where it was left. Undefined if the machine does not know the command. */
function follow(
  app: App,
  { actor }: Place,
  { signal }: MachineCall,
  command: CallCommand,
  output: Output,
): Promise<CommandRecord | undefined> {
  return inside(app, actor, command.sandboxId, async (guest) => {
    if (!(await ask(() => guest.getCommand(command.id)))) return undefined;
    // A command that reads its input finds its end. An earlier process may not have come to this.
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

/** The ends of both streams, and how far they were read. */
class Output {
  readonly stdout = new Ends(streamMaxBytes);
  readonly stderr = new Ends(streamMaxBytes);
  offset = 0;
  /** The machine keeps the last 16 MiB: what it dropped before it was read. */
  droppedBytes = 0;

  add({ stream, offset, data }: { stream: "stdout" | "stderr"; offset: number; data: Buffer }): void {
    this.droppedBytes += Math.max(0, offset - this.offset);
    this.offset = offset + data.length;
    this[stream].add(data);
  }
}

function answerOf(exit: ProcessExit, output: Output, seconds: number): ToolAnswer {
  const dropped = output.droppedBytes > 0 ? `\n[${output.droppedBytes} bytes of output were not kept]` : "";
  const text = (first: string) => textOf(`${first}${dropped}`, output);
  // The model can use less memory in its next call.
  const why = killedBy(exit) === "out_of_memory" ? " (the machine ran out of memory)" : "";
  if (exit.timedOut) return { isOk: false, text: text(`The command was ended after ${seconds} s.`) };
  const signal = signalName(exit.signal);
  return {
    isOk: true,
    text: text(signal === null ? `exit code: ${exit.code ?? 0}${why}` : `ended by ${signal}${why}`),
  };
}

/** What is empty is not shown. */
export function textOf(first: string, { stdout, stderr }: { stdout: Ends; stderr: Ends }): string {
  return [
    first,
    ...(stdout.isEmpty ? [] : [`stdout:\n${stdout.text()}`]),
    ...(stderr.isEmpty ? [] : [`stderr:\n${stderr.text()}`]),
  ].join("\n");
}
