/**
 * Ends a session. The session's active run fails, its messages and machine are deleted, and later invokes are rejected.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { getAgent } from "../agents/agents.ts";
import { RunStartedMeanwhile, transactionWithRetry } from "../runs/journal/transaction-with-retry.ts";
import { lockActive } from "../runs/store.ts";
import { endFromOutside } from "../runs/journal/end-run.ts";
import type { RunExecutor } from "../runs/engine/run-executor.ts";
import { close } from "./close.ts";
import { sessionNotFound } from "./errors.ts";
import { lockSession } from "./store.ts";

/** Ends a session. A session that has ended stays unchanged. */
export async function end(
  app: Pick<App, "db" | "clock">,
  runs: Pick<RunExecutor, "abort">,
  actor: Actor,
  reference: string,
  id: string,
): Promise<void> {
  const agent = await getAgent(app.db, actor, reference);
  const now = app.clock.now();
  const stopped = await transactionWithRetry(app.db, async (tx) => {
    // Runs are locked before sessions, as in a step's statement.
    const active = await lockActive(tx, agent.id, [id]);
    const session = await lockSession(tx, agent.id, id);
    if (!session) throw sessionNotFound();
    if (session.ended_at) return [];
    const failure = { code: "session_ended", message: "The session was ended." } as const;
    for (const run of active) await endFromOutside(tx, run, failure, now);
    // `close` returns false if a run started after the active runs were locked.
    if (!(await close(tx, id, now))) throw new RunStartedMeanwhile();
    const target = { kind: "agent_session", id, label: agent.name };
    await recordActivity(tx, actor, "agent_session.ended", target, agent.workspace_id);
    return active;
  });
  for (const run of stopped) runs.abort(run);
}
