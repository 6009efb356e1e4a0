/**
 * Kills commands that no call waits for. If another request ends a run, a command of the run may still run in its
 * machine, and no process follows it. Each sweep finds such commands in the journal, even commands from before a
 * restart.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { ask } from "#sandbox/commands/commands.ts";
import { inside } from "#sandbox/sandboxes/sandboxes.ts";
import {
  type CallCommand,
  findOrphanCommands,
  forgetCommand,
  isRunEnded,
  type OrphanCommand,
} from "../calls/calls.ts";
import { findMachineActor, isDeleted } from "./machine.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "clock" | "log">;

const ofOneLook = 100;
/** Delay before a retry. A paused or suspended machine accepts no signal. */
const againAfterMs = 60_000;

/**
 * Sends SIGTERM to the command's process group, and SIGKILL 5 s later. A failure is only logged, because the command
 * has its own time limit.
 */
export async function killCommand(
  app: Needs,
  actor: Actor,
  command: Pick<CallCommand, "id" | "sandboxId">,
): Promise<void> {
  await kill(app, actor, command).catch((error: unknown) =>
    app.log.warn({ error, command: command.id }, "could not kill a command"),
  );
}

async function kill(
  app: Needs,
  actor: Actor,
  { id, sandboxId }: Pick<CallCommand, "id" | "sandboxId">,
): Promise<void> {
  try {
    await inside(app, actor, sandboxId, (guest) => ask(() => guest.killCommand(id)));
  } catch (error) {
    if (!isDeleted(error)) throw error;
  }
}

/** Kills the command of a call whose run is over. A command whose run moved to another process is not killed. */
export async function killIfRunEnded(
  app: Needs,
  actor: Actor,
  callId: string,
  command: CallCommand,
): Promise<void> {
  try {
    if (await isRunEnded(app.db, callId)) await kill(app, actor, command);
  } catch (error) {
    app.log.warn({ error, call: callId }, "could not kill the command of an ended run; will retry");
  }
}

/** Kills the commands of all runs that are over. `failed`: time of the last failure, by the call's id. */
export async function killOrphans(app: Needs, failed: Map<string, number> = new Map()): Promise<void> {
  const now = app.clock.now().getTime();
  for (const [call, at] of failed) if (at + againAfterMs <= now) failed.delete(call);
  for (const orphan of await findOrphanCommands(app.db, { except: [...failed.keys()], limit: ofOneLook })) {
    await end(app, orphan).catch((error: unknown) => {
      failed.set(orphan.call_id, now);
      app.log.warn({ error, call: orphan.call_id }, "could not kill the command of an ended run; will retry");
    });
  }
}

async function end(app: Needs, orphan: OrphanCommand): Promise<void> {
  const actor = await findMachineActor(app, orphan.agent_id);
  if (!actor) throw new Error("the agent's account has no owner");
  await kill(app, actor, { id: orphan.command_id, sandboxId: orphan.sandbox_id });
  await forgetCommand(app.db, orphan);
}
