/** Emits an event for a process that was killed because its sandbox ran out of memory. */
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { byWhom, recordEvent } from "#sandbox/events/events.ts";
import { findById } from "../store.ts";

type Needs = Pick<App, "db" | "clock" | "log">;

/** Emits the event. `ended`: id of a background command, or "exec". */
export async function reportOutOfMemory(app: Needs, id: string, ended: string): Promise<void> {
  try {
    await record(app, id, ended);
  } catch (error) {
    // The command has run, so a lost event does not fail its response.
    app.log.warn({ sandbox: id, err: error }, "could not write an event for a process killed out of memory");
  }
}

async function record(app: Needs, id: string, ended: string): Promise<void> {
  const sandbox = await findById(app.db, id);
  if (!sandbox) return;
  const actor = systemActor("the sandbox's memory limit");
  await app.db.transaction().execute((tx) =>
    recordEvent(tx, {
      workspaceId: sandbox.workspace_id,
      event: "sandbox.out_of_memory",
      sandboxId: id,
      at: app.clock.now(),
      outcome: "failed",
      summary: `A process of sandbox ${id} was killed because the sandbox ran out of memory (${sandbox.memory_mb} MB).`,
      detail: { ...byWhom(actor), ended, memory_mb: sandbox.memory_mb },
      actor,
    }),
  );
}
