/**
 * An agent is asked something. The session, what was said, the run and its first event are one transaction; then the
 * run goes on by itself, whether or not the caller stays to hear of it.
 */
import type { Actor } from "#accounts/actor.ts";
import { planLimits } from "#accounts/plans.ts";
import { requireNotSuspended } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#db/db.ts";
import { newId } from "#lib/ids.ts";
import { type AgentRecord, getAgent, getVersion, workspaceOf } from "../agents/agents.ts";
import type { AgentConfig } from "../agents/config.ts";
import { isPaused } from "../agents/pause-all.ts";
import { findCredentials } from "../credentials/credentials.ts";
import * as sessions from "../sessions/sessions.ts";
import { requireMachinePlan } from "../vm/checks.ts";
import { requireNotParking } from "../vm/view.ts";
import { agentPaused, approvalPending, credentialMissing, sessionBusy, tooManyRuns } from "./errors.ts";
import { historyMessage, userMessage } from "./input.ts";
import type { AgentRuns } from "./runs.ts";
import type { Invoke } from "./schema.ts";
import { countInFlight, findActive, insertEvents, insertRun, type RunRow } from "./store.ts";

export type BegunRun = Pick<RunRow, "id" | "session_id">;

export interface Trigger {
  type: RunRow["trigger_type"];
  id: string | null;
  /** In the transaction of the run: what it throws takes back the run as well. */
  within?: (tx: Db, run: BegunRun) => Promise<void>;
  /** The trace that the run is to be part of, as `parseTraceparent` makes it. */
  traceparent?: string | undefined;
}

type Needs = Pick<App, "db" | "clock">;

/** The run's id, once it is committed. */
export async function invoke(
  app: Needs,
  runs: AgentRuns,
  actor: Actor,
  reference: string,
  input: Invoke,
  trigger: Trigger = { type: "api", id: null },
): Promise<string> {
  const agent = await getAgent(app.db, actor, reference);
  const workspace = requireNotSuspended(workspaceOf(actor, agent));
  if (agent.paused) throw agentPaused(false);
  if (await isPaused(app.db, workspace.id)) throw agentPaused(true);
  const now = app.clock.now();
  const id = newId("run_");
  await app.db.transaction().execute(async (tx) => {
    await sessions.holdCounts(tx, workspace.id);
    const isTriggered = trigger.type !== "api";
    const session = await enter(tx, agent, { workspace, input, isTriggered, now });
    await requireIdle(tx, session.id);
    await requireNotParking(tx, session.id);
    const allowed = planLimits[workspace.plan].runsInFlight;
    if ((await countInFlight(tx, workspace.id)) >= allowed) throw tooManyRuns(allowed);
    const run = await insertRun(tx, {
      id,
      workspace_id: workspace.id,
      agent_id: agent.id,
      session_id: session.id,
      session_created: session.isNew,
      version: session.version,
      end_user_id: session.endUserId,
      trigger_type: trigger.type,
      trigger_id: trigger.id,
      traceparent: trigger.traceparent ?? null,
      status: "queued",
      error_code: null,
      error_message: null,
      output: null,
      output_expires_at: null,
      last_event_id: 1,
      process_id: runs.processId,
      created_at: now,
      started_at: null,
      finished_at: null,
    });
    await sessions.say(tx, session.id, [{ runId: id, kind: "input", message: userMessage(input.input) }]);
    await insertEvents(tx, run, [{ type: "run.queued", at: now, data: {} }]);
    await trigger.within?.(tx, run);
  });
  runs.begin(id);
  return id;
}

interface Entered {
  id: string;
  isNew: boolean;
  version: number;
  endUserId: string | null;
}

/** The session of the run: the one that is named, or a new one. */
async function enter(
  tx: Db,
  agent: AgentRecord,
  {
    workspace,
    input,
    isTriggered,
    now,
  }: { workspace: ReturnType<typeof workspaceOf>; input: Invoke; isTriggered: boolean; now: Date },
): Promise<Entered> {
  const resolve = async (wanted: string) => {
    const { version, config } = await getVersion(tx, agent, wanted);
    await requireCredential(tx, workspace.id, config as AgentConfig);
    requireMachinePlan(workspace, config as AgentConfig);
    return version;
  };
  if (input.session_id === undefined) {
    const version = await resolve(input.qualifier);
    const endUserId = input.end_user_id ?? null;
    const history = (input.messages ?? []).map(historyMessage);
    const opened = await sessions.open(tx, {
      agentId: agent.id,
      workspace,
      endUserId,
      version,
      history,
      isTriggered,
      at: now,
    });
    return { id: opened.id, isNew: true, version, endUserId };
  }
  const session = await sessions.take(tx, agent.id, {
    id: input.session_id,
    endUserId: input.end_user_id,
    hasHistory: input.messages !== undefined,
  });
  const version = await resolve(input.upgrade ? input.qualifier : String(session.version));
  await sessions.used(tx, session.id, now, version);
  return { id: session.id, isNew: false, version, endUserId: session.end_user_id };
}

async function requireCredential(db: Db, workspaceId: string, { model }: AgentConfig): Promise<void> {
  const known = await findCredentials(db, workspaceId, [model.credential_id]);
  if (!known.has(model.credential_id)) throw credentialMissing();
}

async function requireIdle(tx: Db, sessionId: string): Promise<void> {
  const [active] = await findActive(tx, [sessionId]);
  if (!active) return;
  throw active.status === "pending_approval" ? approvalPending(active.id) : sessionBusy(active.id);
}
