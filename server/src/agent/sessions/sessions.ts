/**
 * Sessions: one conversation of an agent with somebody. This folder owns who it is with, which version it is pinned
 * to, and what was said. It promises that what was said is only ever added to, and is gone when the session ended; that
 * a session has one end user from its first day; that it holds no more than memory does; and that an account has no more of them than its plan allows.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { getAgent } from "../agents/agents.ts";
import { invalidField } from "../errors.ts";
import { pageOf, positionOf } from "../cursor.ts";
import { activeRuns } from "../runs/journal/busy-sessions.ts";
import { askedIn, type Message } from "../models/messages.ts";
import { machinesOf } from "../vm/view.ts";
import { historyExists, sessionEnded, sessionNotFound } from "./errors.ts";
import {
  type MessageList,
  type MessageQuery,
  type Session,
  type SessionList,
  type SessionQuery,
  toMessage,
  toSession,
} from "./schema.ts";
import {
  countPinned,
  findSession,
  lastMessage,
  listSessions,
  messagesAfter,
  messagesBetween,
  lockCounts,
  lockSession,
  lockTriggered,
  pinSession,
  type SessionRow,
  type TriggerKey,
} from "./store.ts";

export type { SessionRow } from "./store.ts";

/** Maximum size of a page of messages, unless a single message is larger. */
const pageMaxBytes = 4 * 1024 ** 2;

export async function list(
  app: Pick<App, "db" | "secrets">,
  actor: Actor,
  reference: string,
  query: SessionQuery,
): Promise<SessionList> {
  const agent = await getAgent(app.db, actor, reference);
  const { limit, cursor, status, end_user_id: endUserId } = query;
  const name = `sessions:${JSON.stringify([agent.id, status, endUserId])}`;
  const before = positionOf(app, actor, name, cursor);
  const found = await listSessions(app.db, agent.id, { status, endUserId, before, limit: limit + 1 });
  const { page: rows, next_cursor } = pageOf(app, actor, name, found, limit);
  const ids = rows.map(({ id }) => id);
  const [active, machines] = await Promise.all([activeRuns(app.db, ids), machinesOf(app.db, ids)]);
  return {
    items: rows.map((row) => toSession(row, active.get(row.id), machines.get(row.id))),
    next_cursor,
  };
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

/** Lists a session's messages, oldest first. An ended session has none. */
export async function messages(
  app: Pick<App, "db">,
  actor: Actor,
  { agent: reference, session_id: id }: { agent: string; session_id: string },
  { after, limit, end_user_id: endUserId }: MessageQuery,
): Promise<MessageList> {
  const agent = await getAgent(app.db, actor, reference);
  const row = await findSession(app.db, agent.id, id);
  if (!row || (endUserId !== undefined && row.end_user_id !== endUserId)) throw sessionNotFound();
  const rows = await messagesAfter(app.db, id, { seq: after, limit, maxBytes: pageMaxBytes });
  const last = rows.at(-1)?.seq;
  const next_after = last !== undefined && last < row.last_message ? last : null;
  return { items: rows.map(toMessage), next_after };
}

/** Returns a range of a session's messages, with the summary of the earlier ones. Empty if the session has ended. */
export function messagesOf(
  db: Db,
  id: string,
  part: { before: number; last: number; through: number | null },
): ReturnType<typeof messagesBetween> {
  return messagesBetween(db, id, part);
}

// ---- what an invoke is made of

/** One that lives and is with this end user; where none is named, with whomever it is. The caller holds the counts. */
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

/** Finds and locks the live session of a trigger's key. The caller holds the lock on the counts. */
export function takeTriggered(tx: Db, agentId: string, key: TriggerKey): Promise<SessionRow | undefined> {
  return lockTriggered(tx, agentId, key);
}

export function pin(tx: Db, id: string, to: { version: number; at: Date }): Promise<void> {
  return pinSession(tx, id, to);
}

/** What else counts sessions and runs of the workspace waits until this transaction ends. */
export function holdCounts(tx: Db, workspaceId: string): Promise<void> {
  return lockCounts(tx, workspaceId);
}

/** Counts live sessions that are pinned to a version. */
export function pinnedTo(db: Db, agentId: string, version: number): Promise<number> {
  return countPinned(db, agentId, version);
}

/** True if a model can be called next, because the last message is not a final answer. */
export async function awaitsAnswer(db: Db, id: string): Promise<boolean> {
  const last = await lastMessage(db, id);
  return last !== undefined && (last.kind !== "answer" || askedIn(last.message as Message).length > 0);
}
