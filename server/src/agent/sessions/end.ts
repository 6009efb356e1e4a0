/** A session ends: the run in it fails, what was said and its machine are gone, and no later invoke goes on with it. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { getAgent } from "../agents/agents.ts";
import { holdActive, Overtaken, whole } from "../runs/journal/erase.ts";
import { endFromOutside } from "../runs/journal/end-run.ts";
import type { AgentRuns } from "../runs/engine/run-executor.ts";
import { close } from "./close.ts";
import { sessionNotFound } from "./errors.ts";
import { lockSession } from "./store.ts";

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
  const stopped = await whole(app.db, async (tx) => {
    // In the order in which a step is written: its run first.
    const active = await holdActive(tx, agent.id, [id]);
    const session = await lockSession(tx, agent.id, id);
    if (!session) throw sessionNotFound();
    if (session.ended_at) return [];
    const failure = { code: "session_ended", message: "The session was ended." } as const;
    for (const run of active) await endFromOutside(tx, run, failure, now);
    // A run began in it between two looks.
    if (!(await close(tx, id, now))) throw new Overtaken();
    const target = { kind: "agent_session", id, label: agent.name };
    await recordActivity(tx, actor, "agent_session.ended", target, agent.workspace_id);
    return active;
  });
  for (const run of stopped) runs.drop(run);
}
