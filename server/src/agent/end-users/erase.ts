/**
 * Erases an end user: messages, runs, memory, usage, connections and triggers, in one transaction. A process that
 * executes an erased run then finds no row to write to, and an invoke finds no session. A session that is created
 * during the erasure belongs to a new end user. The account's activity keeps only the fact of the erasure and a keyed
 * hash.
 */
import type { Actor } from "#accounts/actor.ts";
import { eraseDetails, eraseTargets, recordActivity } from "#accounts/activity/activity.ts";
import { clearActorCache } from "#accounts/find-actor.ts";
import { deleteNotifications } from "#accounts/notifications/notifications.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { removeSandboxLabel } from "#sandbox/sandboxes/labels.ts";
import { type AgentRecord, getAgent, target } from "../agents/agents.ts";
import { toolsetsUsed } from "../agents/versions/usage-of-configs.ts";
import { revokeConnections } from "../oauth/revocation.ts";
import { forgetFacts } from "../memory/memory.ts";
import { allActive } from "../runs/journal/active-runs.ts";
import { RunStartedMeanwhile, transactionWithRetry } from "../runs/journal/transaction-with-retry.ts";
import { lockActive, findOfSessions } from "../runs/store.ts";
import type { RunExecutor } from "../runs/engine/run-executor.ts";
import { deleteSchedulesOf } from "../schedules/store.ts";
import { deleteSessions, lockSessions, findOfEndUser } from "../sessions/store.ts";
import { terminateMachines } from "../vm/terminate-machines.ts";
import { sessionLabel } from "../vm/create-machine.ts";
import { deleteWebhooksOf } from "../webhooks/store.ts";
import { hashOfEndUser } from "./id.ts";
import type { EndUserErasure } from "./schema.ts";

type Needs = Pick<App, "db" | "secrets">;

export interface ErasureRequest {
  /** Name or id of the agent. */
  agent: string;
  endUserId: string;
  /** Deletes the stored responses of each `Idempotency-Key` that name one of these runs. */
  forgetAnswers: (tx: Db, route: string, runIds: readonly string[]) => Promise<void>;
}

export async function erase(
  app: Needs,
  runs: Pick<RunExecutor, "abort">,
  actor: Actor,
  erasing: ErasureRequest,
): Promise<EndUserErasure> {
  const agent = await getAgent(app.db, actor, erasing.agent);
  const { erased, stopped } = await transactionWithRetry(app.db, (tx) =>
    eraseAll(app, tx, actor, agent, erasing),
  );
  for (const id of stopped) runs.abort(id);
  // The tokens of these runs were deleted with the runs, so the cache must not contain them.
  if (stopped.length > 0) clearActorCache(app);
  return erased;
}

async function eraseAll(
  app: Needs,
  tx: Db,
  actor: Actor,
  agent: AgentRecord,
  { endUserId, forgetAnswers }: ErasureRequest,
): Promise<{ erased: EndUserErasure; stopped: string[] }> {
  const { id: agentId, workspace_id: workspaceId } = agent;
  const sessions = await findOfEndUser(tx, agentId, endUserId);
  // Runs are locked before sessions, as in a step's statement.
  const stopped = await lockActive(tx, agentId, sessions);
  await lockSessions(tx, sessions);
  const active = await allActive(tx, sessions);
  if (active.some((run) => !stopped.includes(run))) throw new RunStartedMeanwhile();
  const triggers = [
    ...(await deleteSchedulesOf(tx, agentId, endUserId)),
    ...(await deleteWebhooksOf(tx, agentId, endUserId)),
  ];
  const all = await findOfSessions(tx, sessions);
  const erased = {
    end_user_id: endUserId,
    sessions: sessions.length,
    vms_destroyed: await terminateMachines(tx, sessions),
    memory_entries: await forgetFacts(tx, agentId, endUserId),
    connections: await revokeConnections(tx, await toolsetsUsed(tx, agentId), endUserId),
    triggers: triggers.length,
  };
  await removeSandboxLabel(tx, workspaceId, sessionLabel, sessions);
  await forgetAnswers(tx, "invokeAgent", all);
  await deleteNotifications(tx, workspaceId, [...all, ...triggers]);
  await deleteSessions(tx, sessions);
  // Comes after the deletion of the runs, so that no later entry of a run can contain a detail.
  await eraseTargets(tx, workspaceId, [...sessions, ...all]);
  await eraseDetails(tx, workspaceId, "run_id", all);
  await eraseTargets(tx, workspaceId, triggers, { hasNames: true });
  const { end_user_id: _, ...counts } = erased;
  const detail = { end_user_hash: hashOfEndUser(app, agentId, endUserId), ...counts };
  await recordActivity(tx, actor, "agent.end_user_erased", target(agent), workspaceId, detail);
  return { erased, stopped };
}
