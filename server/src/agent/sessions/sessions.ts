/**
 * Sessions: conversations of an agent with an end user. This folder owns a session's end user, its pinned version and
 * its messages. Messages are only appended, and are deleted when the session ends. The end user never changes. The size
 * of a session and the number of live sessions in an account are limited.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { getAgent } from "../agents/agents.ts";
import { invalidField } from "../errors.ts";
import { pageOf, positionOf } from "../cursor.ts";
import { activeRuns } from "../runs/journal/active-runs.ts";
import { toolCallsIn, type Message } from "../models/messages.ts";
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
  findSession,
  lastMessage,
  listSessions,
  messagesAfter,
  lockSession,
  type SessionRow,
} from "./store.ts";

export type { SessionRow } from "./store.ts";

/** Maximum size of a page of messages. A single message may be larger. */
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

/** Lists a session's messages, oldest first. A session that has ended has no messages. */
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

// ---- used by invoke

/**
 * Locks a live session for an invoke, and returns it. Checks the end user if the invoke names one. The caller holds the
 * lock on the workspace's counts.
 */
export async function lockForInvoke(
  tx: Db,
  agentId: string,
  wanted: { id: string; endUserId: string | undefined; hasHistory: boolean },
): Promise<SessionRow> {
  const session = await lockSession(tx, agentId, wanted.id);
  if (!session) throw sessionNotFound();
  if (session.ended_at) throw sessionEnded();
  if (wanted.hasHistory) throw historyExists();
  if (wanted.endUserId !== undefined && wanted.endUserId !== session.end_user_id)
    throw invalidField(
      ["end_user_id"],
      "must be the session's own end user; leave out session_id to start a new session",
    );
  return session;
}

/** Returns true if the next step can call the model, because the last message is not a final answer. */
export async function awaitsAnswer(db: Db, id: string): Promise<boolean> {
  const last = await lastMessage(db, id);
  return last !== undefined && (last.kind !== "answer" || toolCallsIn(last.message as Message).length > 0);
}
