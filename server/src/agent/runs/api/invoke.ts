/**
 * Starts a run of an agent. Session, input, run and first event are one transaction. The run then continues even if the
 * caller disconnects.
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
import { type AskedAgent, askedAgent } from "#agent/agents/versions/resolve-agent.ts";
import { type AgentConfig, defaultIdleMinutes } from "#agent/agents/config.ts";
import { firstAlias } from "#agent/agents/limits.ts";
import { parseVersion } from "#agent/agents/names.ts";
import { findCredentials } from "#agent/credentials/credentials.ts";
import { agentNotFound, invalidField, versionNotFound } from "#agent/errors.ts";
import { Conversation } from "#agent/sessions/conversation.ts";
import { sessionCapReached } from "#agent/sessions/errors.ts";
import { evictIdle } from "#agent/sessions/expire.ts";
import type { NewSession } from "#agent/sessions/opened.ts";
import { holdCounts, pin, type SessionRow, take, takeTriggered } from "#agent/sessions/sessions.ts";
import { full, isRoomFor, toWords } from "#agent/sessions/words.ts";
import { requireMachinePlan } from "#agent/vm/checks.ts";
import { isParking, requireNotParking } from "#agent/vm/view.ts";
import { type Beginning, begin, type Begun } from "./insert-run.ts";
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
import type { AgentRuns } from "../engine/run-executor.ts";
import type { Carried } from "../engine/run-context.ts";
import type { Invoke } from "../schema.ts";
import { findActive, type RunRow } from "../store.ts";
import { insertTurn } from "../engine/turns.ts";

export type BegunRun = Pick<RunRow, "id" | "session_id">;

export interface Trigger {
  type: RunRow["trigger_type"];
  id: string | null;
  /** Text by which the trigger finds its session. A busy session queues the run. */
  session?: string | undefined;
  /** Maximum of the trigger's runs that wait in one session. */
  waitingMax?: number | undefined;
  /** Runs in the transaction of the run; an error rolls both back. */
  within?: ((tx: Db, run: BegunRun) => Promise<void>) | undefined;
  /** Trace of the run, as `parseTraceparent` returns it. */
  traceparent?: string | undefined;
}

type Needs = Pick<App, "db" | "clock">;

/** Returns the run's id after the commit. */
export async function invoke(
  app: Needs,
  runs: AgentRuns,
  actor: Actor,
  reference: string,
  input: Invoke,
  trigger: Trigger = { type: "api", id: null },
): Promise<string> {
  const agent = await askedAgent(app.db, actor, reference, input.qualifier ?? firstAlias);
  const workspace = requireNotSuspended(workspaceOf(actor, agent));
  if (agent.archived_at) throw agentArchived();
  if (agent.paused) throw agentPaused(false);
  if (agent.is_all_paused) throw agentPaused(true);
  const id = newId("run_");
  const asking = { id, agent, workspace, input, trigger, taker: runs.taker, now: app.clock.now() };
  const begin = trigger.session !== undefined ? inTriggered : input.session_id === undefined ? inNew : inOld;
  const begun = await runs.committing(id, () => begin(app.db, asking).catch(refuseDeleted));
  if (begun.isWaiting) runs.expectTurn();
  else runs.begin(begun.id, begun.carried);
  return begun.id;
}

/** True if a foreign key failed because the agent or its version was deleted after it was read. */
function refuseDeleted(error: unknown): never {
  const { code, constraint } = error as { code?: string; constraint?: string };
  if (code !== "23503") throw error;
  if (constraint === "agent_sessions_version_fkey") throw versionNotFound();
  if (constraint === "agent_sessions_agent_id_fkey" || constraint === "agent_runs_agent_id_fkey")
    throw agentNotFound();
  throw error;
}

interface Asking {
  /** Id of the new run. */
  id: string;
  agent: AskedAgent;
  workspace: ReachableWorkspace;
  input: Invoke;
  trigger: Trigger;
  taker: Beginning["taker"];
  now: Date;
}

interface Entered {
  id: string;
  /** Row and config of the run, if this process executes it. */
  carried: Carried | undefined;
  /** True if the run waits for its turn in the session. */
  isWaiting?: boolean;
}

/** Starts the run in a new session. */
async function inNew(db: Db, asking: Asking): Promise<Entered> {
  const { id, agent, workspace, input, trigger, now } = asking;
  const { version, config } = requireVersion(agent);
  requireFit(workspace, config, agent.has_credential);
  const endUserId = input.end_user_id ?? null;
  const words = toWords(id, [
    ...(input.messages ?? []).map((one) => ({ kind: "seed" as const, message: historyMessage(one) })),
    { kind: "input", message: userMessage(input.input) },
  ]);
  if (!isRoomFor(words, 0)) throw full();
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
  const beginning = { ...beginningOf(asking, { id, version, endUserId }), session: { new: session }, words };
  const { sessions } = beginning.most;
  let begun = await within(db, trigger, beginning);
  if (begun.status === "full" && begun.liveSessions >= sessions) {
    begun = await transaction(db, async (tx) => {
      await holdCounts(tx, workspace.id);
      if (!(await evictIdle(tx, workspace.id, sessions, now))) throw sessionCapReached(sessions);
      const again = await within(tx, trigger, beginning);
      if (again.status === "full") throw tooManyRuns(beginning.most.inFlight);
      return again;
    });
  }
  return enteredBy(begun, beginning, config, new Conversation(0, words));
}

/** Starts the run in an existing session. */
function inOld(db: Db, asking: Asking): Promise<Entered> {
  const { agent, workspace, input } = asking;
  if (input.ephemeral !== undefined)
    throw invalidField(["ephemeral"], "is only for a new session; leave out ephemeral or session_id");
  return transaction(db, async (tx) => {
    await holdCounts(tx, workspace.id);
    const session = await take(tx, agent.id, {
      id: input.session_id!,
      endUserId: input.end_user_id,
      hasHistory: input.messages !== undefined,
    });
    if (!input.upgrade) requirePinnedTo(session.version, input.qualifier);
    return inLocked(tx, asking, session);
  });
}

/** Starts the run in the session of the trigger's key, or in a new one. */
function inTriggered(db: Db, asking: Asking): Promise<Entered> {
  const { agent, workspace, input, trigger } = asking;
  return transaction(db, async (tx) => {
    await holdCounts(tx, workspace.id);
    const { trigger_id: triggerId, trigger_key: key } = triggerKeyOf(trigger);
    const endUserId = input.end_user_id ?? null;
    const session = await takeTriggered(tx, agent.id, { triggerId: triggerId!, key: key!, endUserId });
    return session ? inLocked(tx, asking, session) : inNew(tx, asking);
  });
}

/**
 * Starts a run in a session whose row is locked. In a busy session, a trigger's run waits for its turn and a caller's
 * run is rejected.
 */
async function inLocked(tx: Db, asking: Asking, session: SessionRow): Promise<Entered> {
  const { id, agent, workspace, input, trigger, now } = asking;
  const { version, config } = input.upgrade
    ? requireVersion(agent)
    : await getVersion(tx, agent, String(session.version));
  requireFit(workspace, config as AgentConfig, await hasCredential(tx, workspace.id, config as AgentConfig));
  const begins = beginningOf(asking, { id, version, endUserId: session.end_user_id });
  const message = userMessage(input.input);
  const words = toWords(id, [{ kind: "input", message }]);
  if (trigger.session !== undefined && (await isBusy(tx, session.id))) {
    if (!isRoomFor(words, session.bytes)) throw full();
    await pin(tx, session.id, { version, at: now });
    const { waitingMax } = trigger;
    const inFlightMax = begins.most.inFlight;
    await insertTurn(tx, { run: begins.run, sessionId: session.id, message, inFlightMax, waitingMax });
    await trigger.within?.(tx, { id, session_id: session.id });
    return { id, carried: undefined, isWaiting: true };
  }
  await requireIdle(tx, session.id);
  await requireNotParking(tx, session.id);
  if (!isRoomFor(words, session.bytes)) throw full();
  const beginning = { ...begins, session: { id: session.id }, words };
  return enteredBy(await within(tx, trigger, beginning), beginning, config as AgentConfig);
}

/** Returns true during the parking of the session's machine too. */
async function isBusy(tx: Db, sessionId: string): Promise<boolean> {
  return (await findActive(tx, [sessionId])).length > 0 || (await isParking(tx, sessionId));
}

/** The key is stored as a hash, because it may identify a person and has any length. */
function triggerKeyOf({ id, session }: Trigger): Pick<NewSession, "trigger_id" | "trigger_key"> {
  if (session === undefined) return {};
  return { trigger_id: id, trigger_key: createHash("sha256").update(session).digest() };
}

/**
 * A version number must equal the session's version. An alias need not, because it may have moved since the session
 * began.
 */
function requirePinnedTo(pinned: number | null, qualifier: string | undefined): void {
  const wanted = qualifier === undefined ? undefined : parseVersion(qualifier);
  if (typeof wanted !== "object" || !("version" in wanted) || wanted.version === pinned) return;
  throw sessionPinned({ pinned, wanted: wanted.version });
}

function beginningOf(
  { agent, workspace, trigger, taker, now }: Asking,
  { id, version, endUserId }: { id: string; version: number; endUserId: string | null },
): Omit<Beginning, "session" | "words"> {
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
    most: { sessions: liveSessions, inFlight: runsInFlight },
    taker,
  };
}

/** Runs the trigger's own statements in the same transaction. Without them, one statement suffices. */
function within(db: Db, trigger: Trigger, beginning: Beginning): Promise<Begun> {
  if (!trigger.within) return begin(db, beginning);
  return transaction(db, async (tx) => {
    const begun = await begin(tx, beginning);
    const session_id = "new" in beginning.session ? beginning.session.new.id : beginning.session.id;
    if (begun.status !== "full") await trigger.within?.(tx, { id: beginning.run.id, session_id });
    return begun;
  });
}

/** Throws `too_many_runs` if a limit is reached. */
function enteredBy(
  begun: Begun,
  { run, most }: Beginning,
  config: AgentConfig,
  conversation?: Conversation,
): Entered {
  if (begun.status === "full") throw tooManyRuns(most.inFlight);
  const carried = begun.status === "running" ? { row: begun.row, config, conversation } : undefined;
  return { id: run.id, carried };
}

function requireVersion({ version, config }: AskedAgent): { version: number; config: AgentConfig } {
  if (version === null) throw versionNotFound();
  return { version, config: config as AgentConfig };
}

/** Returns true for the built-in model, which needs no credential. */
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
