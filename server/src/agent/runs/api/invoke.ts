/**
 * Starts a run of an agent. A single transaction stores session, input, run and first event. The run then continues
 * even if the caller disconnects.
 */
import { createHash } from "node:crypto";
import type { Actor, ReachableWorkspace } from "#accounts/actor.ts";
import { planLimits } from "#accounts/plans.ts";
import { requireNotSuspended } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { getVersion, workspaceOf } from "#agent/agents/agents.ts";
import { type AskedAgent, resolveAgent } from "#agent/agents/versions/resolve-agent.ts";
import { type AgentConfig, defaultIdleMinutes } from "#agent/agents/config.ts";
import { firstAlias } from "#agent/agents/limits.ts";
import { parseVersion } from "#agent/agents/names.ts";
import { findCredentials } from "#agent/credentials/credentials.ts";
import { agentNotFound, invalidField, versionNotFound } from "#agent/errors.ts";
import { Conversation } from "#agent/sessions/conversation.ts";
import { sessionCapReached } from "#agent/sessions/errors.ts";
import { evictIdle } from "#agent/sessions/expire.ts";
import { lockForInvoke } from "#agent/sessions/sessions.ts";
import {
  lockCounts,
  pinSession,
  type SessionRow,
  lockTriggered,
  type NewSession,
} from "#agent/sessions/store.ts";
import { sessionFullError, fitsInSession, toNewMessages } from "#agent/sessions/new-messages.ts";
import { requireMachinePlan } from "#agent/vm/checks.ts";
import { isParking, requireNotParking } from "#agent/vm/view.ts";
import { type NewRun, insertRun, type InsertedRun } from "./insert-run.ts";
import {
  agentArchived,
  agentPaused,
  approvalPending,
  credentialMissing,
  sessionBusy,
  sessionPinned,
  tooManyRuns,
} from "./run-errors.ts";
import { historyMessage, userMessage } from "./input.ts";
import type { RunExecutor } from "../engine/run-executor.ts";
import type { AcquiredRun } from "../engine/run-context.ts";
import type { Invoke } from "../schema.ts";
import { findActive, type RunRow } from "../store.ts";
import { insertTurn } from "../engine/turns.ts";

export type NewRunIds = Pick<RunRow, "id" | "session_id">;

export interface Trigger {
  type: RunRow["trigger_type"];
  id: string | null;
  /** Key by which the trigger finds its session. If the session is busy, the run is queued. */
  session?: string | undefined;
  /** Maximum number of the trigger's runs that wait in one session. */
  waitingMax?: number | undefined;
  /** Work in the run's transaction. An error rolls back both the work and the run. */
  within?: ((tx: Db, run: NewRunIds) => Promise<void>) | undefined;
  /** Trace context of the caller, as `parseTraceparent` returns it. */
  traceparent?: string | undefined;
}

type Needs = Pick<App, "db" | "clock">;

/** Starts a run, and returns its id after the commit. */
export async function invoke(
  app: Needs,
  runs: RunExecutor,
  actor: Actor,
  reference: string,
  input: Invoke,
  trigger: Trigger = { type: "api", id: null },
): Promise<string> {
  const agent = await resolveAgent(app.db, actor, reference, input.qualifier ?? firstAlias);
  const workspace = requireNotSuspended(workspaceOf(actor, agent));
  if (agent.archived_at) throw agentArchived();
  if (agent.paused) throw agentPaused(false);
  if (agent.is_all_paused) throw agentPaused(true);
  const id = newId("run_");
  const request = { id, agent, workspace, input, trigger, executor: runs.executor, now: app.clock.now() };
  const begin =
    trigger.session !== undefined
      ? startInTriggerSession
      : input.session_id === undefined
        ? startInNewSession
        : startInExistingSession;
  const inserted = await runs.guardCommit(id, () => begin(app.db, request).catch(refuseDeleted));
  if (inserted.isWaiting) runs.noteWaitingTurn();
  else runs.submit(inserted.id, inserted.acquired);
  return inserted.id;
}

/**
 * Converts a foreign key error to a 404. The error means that the agent or its version was deleted after this server
 * read it.
 */
function refuseDeleted(error: unknown): never {
  const { code, constraint } = error as { code?: string; constraint?: string };
  if (code !== "23503") throw error;
  if (constraint === "agent_sessions_version_fkey") throw versionNotFound();
  if (constraint === "agent_sessions_agent_id_fkey" || constraint === "agent_runs_agent_id_fkey")
    throw agentNotFound();
  throw error;
}

interface InvokeRequest {
  /** Id of the new run. */
  id: string;
  agent: AskedAgent;
  workspace: ReachableWorkspace;
  input: Invoke;
  trigger: Trigger;
  executor: NewRun["executor"];
  now: Date;
}

interface StartedRun {
  id: string;
  /** Row and config of the run, if this process executes it. */
  acquired: AcquiredRun | undefined;
  /** True if the run waits until the session's earlier runs have ended. */
  isWaiting?: boolean;
}

/** Starts the run in a new session. */
async function startInNewSession(db: Db, request: InvokeRequest): Promise<StartedRun> {
  const { id, agent, workspace, input, trigger, now } = request;
  const { version, config } = requireVersion(agent);
  requireFit(workspace, config, agent.has_credential);
  const endUserId = input.end_user_id ?? null;
  const words = toNewMessages(id, [
    ...(input.messages ?? []).map((one) => ({ kind: "seed" as const, message: historyMessage(one) })),
    { kind: "input", message: userMessage(input.input) },
  ]);
  if (!fitsInSession(words, 0)) throw sessionFullError();
  const session: NewSession = {
    id: newId("ses_"),
    agent_id: agent.id,
    workspace_id: workspace.id,
    end_user_id: endUserId,
    version,
    idle_minutes: config.session?.idle_minutes ?? defaultIdleMinutes,
    is_ephemeral: input.ephemeral ?? false,
    ...triggerKeyOf(trigger),
    created_at: now,
  };
  const newRun = { ...toNewRun(request, { id, version, endUserId }), session: { new: session }, words };
  const { sessions } = newRun.limits;
  let inserted = await insertWithTrigger(db, trigger, newRun);
  if (inserted.status === "full" && inserted.liveSessions >= sessions) {
    inserted = await transaction(db, async (tx) => {
      await lockCounts(tx, workspace.id);
      if (!(await evictIdle(tx, workspace.id, sessions, now))) throw sessionCapReached(sessions);
      const again = await insertWithTrigger(tx, trigger, newRun);
      if (again.status === "full") throw tooManyRuns(newRun.limits.inFlight);
      return again;
    });
  }
  return toStartedRun(inserted, newRun, config, new Conversation(0, words));
}

/** Starts the run in an existing session. */
function startInExistingSession(db: Db, request: InvokeRequest): Promise<StartedRun> {
  const { agent, workspace, input } = request;
  if (input.ephemeral !== undefined)
    throw invalidField(["ephemeral"], "is only for a new session; leave out ephemeral or session_id");
  return transaction(db, async (tx) => {
    await lockCounts(tx, workspace.id);
    const session = await lockForInvoke(tx, agent.id, {
      id: input.session_id!,
      endUserId: input.end_user_id,
      hasHistory: input.messages !== undefined,
    });
    if (!input.upgrade) requirePinnedTo(session.version, input.qualifier);
    return startInLockedSession(tx, request, session);
  });
}

/** Starts the run in the session of the trigger's key, or in a new session. */
function startInTriggerSession(db: Db, request: InvokeRequest): Promise<StartedRun> {
  const { agent, workspace, input, trigger } = request;
  return transaction(db, async (tx) => {
    await lockCounts(tx, workspace.id);
    const { trigger_id: triggerId, trigger_key: key } = triggerKeyOf(trigger);
    const endUserId = input.end_user_id ?? null;
    const session = await lockTriggered(tx, agent.id, { triggerId: triggerId!, key: key!, endUserId });
    return session ? startInLockedSession(tx, request, session) : startInNewSession(tx, request);
  });
}

/**
 * Starts a run in a session whose row is locked. If the session is busy, a trigger's run waits and a caller's run is
 * rejected.
 */
async function startInLockedSession(
  tx: Db,
  request: InvokeRequest,
  session: SessionRow,
): Promise<StartedRun> {
  const { id, agent, workspace, input, trigger, now } = request;
  const { version, config } = input.upgrade
    ? requireVersion(agent)
    : await getVersion(tx, agent, String(session.version));
  requireFit(workspace, config as AgentConfig, await hasCredential(tx, workspace.id, config as AgentConfig));
  const base = toNewRun(request, { id, version, endUserId: session.end_user_id });
  const message = userMessage(input.input);
  const words = toNewMessages(id, [{ kind: "input", message }]);
  if (trigger.session !== undefined && (await isBusy(tx, session.id))) {
    if (!fitsInSession(words, session.bytes)) throw sessionFullError();
    await pinSession(tx, session.id, { version, at: now });
    const { waitingMax } = trigger;
    const inFlightMax = base.limits.inFlight;
    await insertTurn(tx, { run: base.run, sessionId: session.id, message, inFlightMax, waitingMax });
    await trigger.within?.(tx, { id, session_id: session.id });
    return { id, acquired: undefined, isWaiting: true };
  }
  await requireIdle(tx, session.id);
  await requireNotParking(tx, session.id);
  if (!fitsInSession(words, session.bytes)) throw sessionFullError();
  const newRun = { ...base, session: { id: session.id }, words };
  return toStartedRun(await insertWithTrigger(tx, trigger, newRun), newRun, config as AgentConfig);
}

/** Returns true if the session has an active run, or if its machine is being parked. */
async function isBusy(tx: Db, sessionId: string): Promise<boolean> {
  return (await findActive(tx, [sessionId])).length > 0 || (await isParking(tx, sessionId));
}

/**
 * Returns the columns of a trigger's key. The key is stored as a hash, because the key may identify a person and has
 * any length.
 */
function triggerKeyOf({ id, session }: Trigger): Pick<NewSession, "trigger_id" | "trigger_key"> {
  if (session === undefined) return {};
  return { trigger_id: id, trigger_key: createHash("sha256").update(session).digest() };
}

/**
 * Throws unless a version number equals the session's version. An alias may differ, because it may have moved since the
 * session began.
 */
function requirePinnedTo(pinned: number | null, qualifier: string | undefined): void {
  const wanted = qualifier === undefined ? undefined : parseVersion(qualifier);
  if (typeof wanted !== "object" || !("version" in wanted) || wanted.version === pinned) return;
  throw sessionPinned({ pinned, wanted: wanted.version });
}

function toNewRun(
  { agent, workspace, trigger, executor, now }: InvokeRequest,
  { id, version, endUserId }: { id: string; version: number; endUserId: string | null },
): Omit<NewRun, "session" | "words"> {
  const { liveSessions, runsInFlight } = planLimits[workspace.plan];
  return {
    run: {
      id,
      workspace_id: workspace.id,
      agent_id: agent.id,
      version,
      end_user_id: endUserId,
      trigger_type: trigger.type,
      trigger_id: trigger.id,
      traceparent: trigger.traceparent ?? null,
      created_at: now,
    },
    limits: { sessions: liveSessions, inFlight: runsInFlight },
    executor: executor,
  };
}

/**
 * Inserts the run, and runs the trigger's own statements in the same transaction. Without such statements, a single
 * statement suffices.
 */
function insertWithTrigger(db: Db, trigger: Trigger, newRun: NewRun): Promise<InsertedRun> {
  if (!trigger.within) return insertRun(db, newRun);
  return transaction(db, async (tx) => {
    const inserted = await insertRun(tx, newRun);
    const session_id = "new" in newRun.session ? newRun.session.new.id : newRun.session.id;
    if (inserted.status !== "full") await trigger.within?.(tx, { id: newRun.run.id, session_id });
    return inserted;
  });
}

/** Converts an inserted run. Throws `too_many_runs` if a limit was reached. */
function toStartedRun(
  inserted: InsertedRun,
  { run, limits: most }: NewRun,
  config: AgentConfig,
  conversation?: Conversation,
): StartedRun {
  if (inserted.status === "full") throw tooManyRuns(most.inFlight);
  const acquired = inserted.status === "running" ? { row: inserted.row, config, conversation } : undefined;
  return { id: run.id, acquired };
}

function requireVersion({ version, config }: AskedAgent): { version: number; config: AgentConfig } {
  if (version === null) throw versionNotFound();
  return { version, config: config as AgentConfig };
}

/** Returns true if the credential of the model exists. The built-in model needs none. */
async function hasCredential(db: Db, workspaceId: string, { model }: AgentConfig): Promise<boolean> {
  if (model.credential_id === undefined) return model.provider === "echo";
  return (await findCredentials(db, workspaceId, [model.credential_id])).size > 0;
}

function requireFit(workspace: ReachableWorkspace, config: AgentConfig, hasCredential: boolean): void {
  if (!hasCredential) throw credentialMissing();
  requireMachinePlan(workspace, config);
}

async function requireIdle(tx: Db, sessionId: string): Promise<void> {
  const [active] = await findActive(tx, [sessionId]);
  if (!active) return;
  throw active.status === "pending_approval" ? approvalPending(active.id) : sessionBusy(active.id);
}
