/** All SQL of sessions and what was said in them. The workspaces a caller can reach are an argument of what a caller does. */
import { type Selectable, sql } from "kysely";
import type { Db } from "#db/db.ts";
import { activeStatuses } from "../runs/states.ts";
import { storableJson } from "../storable.ts";
import type { AgentMessagesTable, AgentSessionsTable } from "./tables.ts";

export type SessionRow = Selectable<AgentSessionsTable>;
export type MessageKind = AgentMessagesTable["kind"];

export type SaidMessage = Pick<
  Selectable<AgentMessagesTable>,
  "seq" | "run_id" | "kind" | "message" | "bytes"
>;

export interface NewMessage {
  runId: string | null;
  kind: MessageKind;
  message: unknown;
}

export async function countLive(db: Db, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("agent_sessions")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .where("ended_at", "is", null)
    .executeTakeFirstOrThrow();
  return Number(count);
}

export function insertSession(
  tx: Db,
  session: Pick<
    SessionRow,
    "id" | "agent_id" | "workspace_id" | "end_user_id" | "version" | "created_at" | "is_triggered"
  >,
): Promise<SessionRow> {
  return tx
    .insertInto("agent_sessions")
    .values({ ...session, last_used_at: session.created_at, ended_at: null })
    .returningAll()
    .executeTakeFirstOrThrow();
}

/** Nobody else's to change until this transaction ends. */
export function lockSession(tx: Db, agentId: string, id: string): Promise<SessionRow | undefined> {
  return tx
    .selectFrom("agent_sessions")
    .selectAll()
    .where("id", "=", id)
    .where("agent_id", "=", agentId)
    .forUpdate()
    .executeTakeFirst();
}

export function findSession(db: Db, agentId: string, id: string): Promise<SessionRow | undefined> {
  return db
    .selectFrom("agent_sessions")
    .selectAll()
    .where("id", "=", id)
    .where("agent_id", "=", agentId)
    .executeTakeFirst();
}

export function listSessions(db: Db, agentId: string, limit: number): Promise<SessionRow[]> {
  return db
    .selectFrom("agent_sessions")
    .selectAll()
    .where("agent_id", "=", agentId)
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .limit(limit)
    .execute();
}

export async function changeSession(
  tx: Db,
  id: string,
  change: Partial<Pick<SessionRow, "version" | "last_used_at" | "ended_at">>,
): Promise<void> {
  await tx.updateTable("agent_sessions").set(change).where("id", "=", id).execute();
}

/**
 * Behind what was said before; the session's row gives them their places. False, and nothing is added, where the
 * session would hold more than `maxBytes`.
 */
export async function appendMessages(
  tx: Db,
  sessionId: string,
  messages: readonly NewMessage[],
  maxBytes: number,
): Promise<boolean> {
  if (messages.length === 0) return true;
  const texts = messages.map(({ message }) => storableJson(message));
  const sizes = texts.map((text) => Buffer.byteLength(text));
  const added = sizes.reduce((sum, bytes) => sum + bytes, 0);
  const session = await tx
    .updateTable("agent_sessions")
    .set((eb) => ({
      last_message: eb("last_message", "+", messages.length),
      bytes: eb("bytes", "+", added),
    }))
    .where("id", "=", sessionId)
    .where("bytes", "<=", maxBytes - added)
    .returning("last_message")
    .executeTakeFirst();
  if (!session) return false;
  await tx
    .insertInto("agent_messages")
    .values(
      messages.map(({ runId, kind }, index) => ({
        session_id: sessionId,
        seq: session.last_message - messages.length + 1 + index,
        run_id: runId,
        kind,
        message: texts[index]!,
        bytes: sizes[index]!,
      })),
    )
    .execute();
  return true;
}

/** The last ones that fit into so many bytes, and in any case those from the last question on. */
export async function lastMessages(db: Db, sessionId: string, maxBytes: number): Promise<SaidMessage[]> {
  const { rows } = await sql<{ first: number | null }>`
    select least(
      (select max(seq) from agent_messages where session_id = ${sessionId} and kind = 'input'),
      (select min(seq) from (
        select seq, sum(bytes) over (order by seq desc) as bytes
        from agent_messages where session_id = ${sessionId}) as up_to
        where bytes <= ${maxBytes})) as first`.execute(db);
  return db
    .selectFrom("agent_messages")
    .select(["seq", "run_id", "kind", "message", "bytes"])
    .where("session_id", "=", sessionId)
    .where("seq", ">=", rows[0]?.first ?? 1)
    .orderBy("seq")
    .execute();
}

export function lastMessage(db: Db, sessionId: string): Promise<{ message: unknown } | undefined> {
  return db
    .selectFrom("agent_messages")
    .select("message")
    .where("session_id", "=", sessionId)
    .orderBy("seq", "desc")
    .limit(1)
    .executeTakeFirst();
}

// ---- erasing

const anyOf = (values: readonly string[]) => sql<string>`any(${sql.val([...values])}::text[])`;

export async function findOfEndUser(db: Db, agentId: string, endUserId: string): Promise<string[]> {
  const rows = await db
    .selectFrom("agent_sessions")
    .select("id")
    .where("agent_id", "=", agentId)
    .where("end_user_id", "=", endUserId)
    .orderBy("id")
    .execute();
  return rows.map(({ id }) => id);
}

export async function lockSessions(tx: Db, ids: readonly string[]): Promise<void> {
  await tx
    .selectFrom("agent_sessions")
    .select("id")
    .where("id", "=", anyOf(ids))
    .orderBy("id")
    .forUpdate()
    .execute();
}

/** With what refers to them: what was said, runs, and what is of those. */
export async function deleteSessions(tx: Db, ids: readonly string[]): Promise<void> {
  await tx.deleteFrom("agent_sessions").where("id", "=", anyOf(ids)).execute();
}

export async function deleteMessages(tx: Db, sessionId: string): Promise<void> {
  await tx.deleteFrom("agent_messages").where("session_id", "=", sessionId).execute();
}

/** Sessions that live and that no caller began, the longest unused first; none in which a run is under way. */
export function findTriggered(
  db: Db,
  wanted: { workspaceId?: string; unusedSince?: Date },
  limit: number,
): Promise<SessionRow[]> {
  let query = db
    .selectFrom("agent_sessions")
    .selectAll()
    .where("is_triggered", "=", true)
    .where("ended_at", "is", null)
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom("agent_runs as r")
            .select("r.id")
            .whereRef("r.session_id", "=", "agent_sessions.id")
            .where("r.status", "in", activeStatuses),
        ),
      ),
    );
  if (wanted.workspaceId !== undefined) query = query.where("workspace_id", "=", wanted.workspaceId);
  if (wanted.unusedSince !== undefined) query = query.where("last_used_at", "<", wanted.unusedSince);
  return query.orderBy("last_used_at").limit(limit).execute();
}

/** With what else counts sessions and runs of the workspace held off until this transaction ends. */
export async function lockCounts(tx: Db, workspaceId: string): Promise<void> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 42))`.execute(tx);
}
