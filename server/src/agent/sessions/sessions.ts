/**
 * Sessions: one conversation of an agent with somebody. This folder owns who it is with, which version it is pinned
 * to, and what was said. It promises that what was said is only ever added to, and is gone when the session ended; that
 * a session has one end user from its first day; that it holds no more than memory does; and that an account has no more of them than its plan allows.
 */
import type { Actor, ReachableWorkspace } from "#accounts/actor.ts";
import { planLimits } from "#accounts/plans.ts";
import type { App } from "#app.ts";
import type { Db } from "#db/db.ts";
import { newId } from "#lib/ids.ts";
import { getAgent } from "../agents/agents.ts";
import { invalidField } from "../errors.ts";
import { askedIn, type Message } from "../models/messages.ts";
import { activeRuns } from "../runs/active.ts";
import { machinesOf } from "../vm/view.ts";
import { historyExists, sessionCapReached, sessionEnded, sessionFull, sessionNotFound } from "./errors.ts";
import { makeRoom } from "./left.ts";
import { type Session, toSession } from "./schema.ts";
import {
  appendMessages,
  changeSession,
  countLive,
  findSession,
  insertSession,
  lastMessage,
  lastMessages,
  listSessions,
  lockCounts,
  lockSession,
  type NewMessage,
  type SaidMessage,
  type SessionRow,
} from "./store.ts";

const sessionMaxMiB = 32;
/** Of what a model is told: more than any takes, and as much as many runs at once may have in memory. */
const toldMaxBytes = 8 * 1024 ** 2;

export async function list(
  app: Pick<App, "db">,
  actor: Actor,
  reference: string,
  limit: number,
): Promise<{ items: Session[] }> {
  const agent = await getAgent(app.db, actor, reference);
  const rows = await listSessions(app.db, agent.id, limit);
  const ids = rows.map(({ id }) => id);
  const [active, machines] = await Promise.all([activeRuns(app.db, ids), machinesOf(app.db, ids)]);
  return { items: rows.map((row) => toSession(row, active.get(row.id), machines.get(row.id))) };
}

export async function get(
  app: Pick<App, "db">,
  actor: Actor,
  reference: string,
  id: string,
): Promise<Session> {
  const agent = await getAgent(app.db, actor, reference);
  const row = await findSession(app.db, agent.id, id);
  if (!row) throw sessionNotFound();
  const [active, machines] = await Promise.all([activeRuns(app.db, [id]), machinesOf(app.db, [id])]);
  return toSession(row, active.get(id), machines.get(id));
}

// ---- what an invoke is made of

export interface NewSession {
  agentId: string;
  workspace: ReachableWorkspace;
  endUserId: string | null;
  version: number;
  history: readonly unknown[];
  /** By a schedule or a webhook. */
  isTriggered: boolean;
  at: Date;
}

/** The caller has asked for `holdCounts`. */
export async function open(tx: Db, input: NewSession): Promise<SessionRow> {
  const allowed = planLimits[input.workspace.plan].liveSessions;
  // More than one where the plan was a larger one.
  const places = (await countLive(tx, input.workspace.id)) + 1 - allowed;
  if (places > 0 && !(await makeRoom(tx, input.workspace.id, places, input.at)))
    throw sessionCapReached(allowed);
  const session = await insertSession(tx, {
    id: newId("ses_"),
    agent_id: input.agentId,
    workspace_id: input.workspace.id,
    end_user_id: input.endUserId,
    version: input.version,
    is_triggered: input.isTriggered,
    created_at: input.at,
  });
  await say(
    tx,
    session.id,
    input.history.map((message) => ({ runId: null, kind: "seed" as const, message })),
  );
  return session;
}

/** One that lives and is with this end user; where none is named, with whomever it is. */
export async function take(
  tx: Db,
  agentId: string,
  wanted: { id: string; endUserId: string | undefined; hasHistory: boolean },
): Promise<SessionRow> {
  const session = await lockSession(tx, agentId, wanted.id);
  if (!session) throw sessionNotFound();
  if (session.ended_at) throw sessionEnded();
  if (wanted.hasHistory) throw historyExists();
  if (wanted.endUserId !== undefined && wanted.endUserId !== session.end_user_id)
    throw invalidField(["end_user_id"], "the session is with another end user; start a new one");
  return session;
}

/** What else counts sessions and runs of the workspace waits until this transaction ends. */
export function holdCounts(tx: Db, workspaceId: string): Promise<void> {
  return lockCounts(tx, workspaceId);
}

/** Throws `session_full`. */
export async function say(tx: Db, sessionId: string, messages: readonly NewMessage[]): Promise<void> {
  const isSaid = await appendMessages(tx, sessionId, messages, sessionMaxMiB * 1024 ** 2);
  if (!isSaid) throw sessionFull(sessionMaxMiB);
}

export function used(tx: Db, sessionId: string, at: Date, version?: number): Promise<void> {
  return changeSession(tx, sessionId, { last_used_at: at, ...(version === undefined ? {} : { version }) });
}

/** Whether the last thing that was said asks for tools whose outcomes nobody told. */
export async function hasUntoldCalls(db: Db, sessionId: string): Promise<boolean> {
  const last = await lastMessage(db, sessionId);
  return askedIn(last?.message as Message | undefined).length > 0;
}

/** What was said last, at the least all since the last question, and how many messages were said before that. */
export async function conversation(
  db: Db,
  sessionId: string,
): Promise<{ said: SaidMessage[]; before: number }> {
  const said = await lastMessages(db, sessionId, toldMaxBytes);
  return { said, before: (said[0]?.seq ?? 1) - 1 };
}
