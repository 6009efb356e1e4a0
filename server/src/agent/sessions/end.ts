/** A session ends: the run in it fails, what was said and its machine are gone, and no later invoke goes on with it. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { getAgent } from "../agents/agents.ts";
import { activeRuns } from "../runs/active.ts";
import { holdActive } from "../runs/erase.ts";
import { endFromOutside } from "../runs/end.ts";
import type { AgentRuns } from "../runs/runs.ts";
import { close } from "./close.ts";
import { sessionNotFound } from "./errors.ts";
import { findSession, lockSession } from "./store.ts";

/** One that has ended already stays so. */
export async function end(
  app: Pick<App, "db" | "clock">,
  runs: Pick<AgentRuns, "drop">,
  actor: Actor,
  reference: string,
  id: string,
): Promise<void> {
  const agent = await getAgent(app.db, actor, reference);
  const now = app.clock.now();
  const stopped = await app.db.transaction().execute(async (tx) => {
    if (!(await findSession(tx, agent.id, id))) throw sessionNotFound();
    // In the order in which a step is written: its run first.
    await holdActive(tx, [id]);
    const session = await lockSession(tx, agent.id, id);
    if (!session) throw sessionNotFound();
    if (session.ended_at) return undefined;
    const active = (await activeRuns(tx, [id])).get(id);
    const failure = { code: "session_ended", message: "The session was ended." } as const;
    if (active !== undefined) await endFromOutside(tx, active, failure, now);
    await close(tx, id, now);
    const target = { kind: "agent_session", id, label: agent.name };
    await recordActivity(tx, actor, "agent_session.ended", target, agent.workspace_id);
    return active;
  });
  if (stopped !== undefined) runs.drop(stopped);
}
