/**
 * Sessions: one conversation of an agent with somebody. This folder owns who it is with, which version it is pinned
 * to, and what was said. It promises that what was said is only ever added to, and is gone when the session ended; that
 * a session has one end user from its first day; that it holds no more than memory does; and that an account has no more of them than its plan allows.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#db/db.ts";
import { getAgent } from "../agents/agents.ts";
import { invalidField } from "../errors.ts";
import { pageOf, positionOf } from "../cursor.ts";
import { activeRuns } from "../runs/active.ts";
import { machinesOf } from "../vm/view.ts";
import { historyExists, sessionEnded, sessionNotFound } from "./errors.ts";
import { type Session, type SessionList, type SessionQuery, toSession } from "./schema.ts";
import { findSession, listSessions, lockCounts, lockSession, type SessionRow } from "./store.ts";

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

/** What else counts sessions and runs of the workspace waits until this transaction ends. */
export function holdCounts(tx: Db, workspaceId: string): Promise<void> {
  return lockCounts(tx, workspaceId);
}
