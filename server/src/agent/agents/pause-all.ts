/** Pauses all agents of an account, independent of each agent's own pause. No new run starts during the pause. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { homeWorkspace, requireNotSuspended } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { PauseAll } from "./schema.ts";
import { deletePause, findPause, insertPause } from "./store.ts";

export async function pauseAll(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  paused: boolean,
): Promise<PauseAll> {
  const { id } = requireNotSuspended(homeWorkspace(actor));
  return app.db.transaction().execute(async (tx) => {
    if (paused) await insertPause(tx, id, app.clock.now());
    else await deletePause(tx, id);
    const action = paused ? "agents.paused" : "agents.unpaused";
    await recordActivity(tx, actor, action, { kind: "workspace", id, label: null }, id);
    return toPauseAll(await findPause(tx, id));
  });
}

export async function isAllPaused(app: Pick<App, "db">, actor: Actor): Promise<PauseAll> {
  return toPauseAll(await findPause(app.db, homeWorkspace(actor).id));
}

const toPauseAll = (at: Date | undefined): PauseAll => ({
  paused: at !== undefined,
  paused_at: at?.toISOString() ?? null,
});
