/** All SQL of sessions and their messages. Callers have already checked access to the agent. */
import { type RawBuilder, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { Position } from "../cursor.ts";
import { activeStatuses } from "../runs/states.ts";
import type { AgentMessagesTable, AgentSessionsTable } from "./tables.ts";

export type SessionRow = Selectable<AgentSessionsTable>;
export type MessageKind = AgentMessagesTable["kind"];

export type StoredMessage = Pick<
  Selectable<AgentMessagesTable>,
  "seq" | "run_id" | "kind" | "message" | "bytes"
>;

/** A message to store, without its sequence number. */
export type NewMessage = Omit<StoredMessage, "seq"> & { text: string };

/**
 * Returns the CTE `counts` with the workspace's counts, which are locked until the transaction ends. `here` counts the
 * workspace's runs in this process.
 */
export function lockedCounts(workspaceId: string, processId: string): RawBuilder<unknown> {
  return sql`counts as materialized (
    select live_sessions, in_flight, here from agent_counts(${workspaceId}, ${processId}))`;
}

export type NewSession = Pick<
  SessionRow,
  "id" | "agent_id" | "workspace_id" | "end_user_id" | "created_at" | "idle_minutes" | "is_ephemeral"
> & { version: number } & Partial<Pick<SessionRow, "trigger_id" | "trigger_key">>;

/** Returns the CTE `session`, which inserts a session if `isAllowed` holds for the row `counts`. */
export function insertSession(
  session: NewSession,
  messages: readonly NewMessage[],
  isAllowed: RawBuilder<unknown>,
): RawBuilder<unknown> {
  const row = {
    ...session,
    last_used_at: session.created_at,
    last_message: messages.length,
    bytes: bytesOf(messages),
  };
  const names = Object.keys(row).map((name) => sql.ref(name));
  return sql`session as (
    insert into agent_sessions (${sql.join(names)}) select ${sql.join(Object.values(row))} from counts
    where ${isAllowed} returning id, last_message)`;
}

/**
 * Returns the CTE `session`, which updates a session for these messages. The caller holds the lock on the session's
 * row.
 */
export function useSession(
  { id, version, at }: { id: string; version: number; at: Date },
  messages: readonly NewMessage[],
  isAllowed: RawBuilder<unknown>,
): RawBuilder<unknown> {
  return sql`session as (
    update agent_sessions set last_used_at = ${at}, version = ${version}, ${growth(messages)} from counts
    where id = ${id} and ${isAllowed} returning id, last_message)`;
}

/** Returns a condition: with these messages, the session has at most `maxBytes`. */
export function hasRoomFor(
  sessionId: RawBuilder<unknown>,
  messages: readonly NewMessage[],
  maxBytes: number,
): RawBuilder<unknown> {
  return sql`exists (select from agent_sessions as s
    where s.id = ${sessionId} and s.bytes + ${bytesOf(messages)} <= ${maxBytes})`;
}

/**
 * Returns the CTE `session`, which updates a session for these messages, for a statement whose `run` is a run of the
 * session.
 */
export function growSession(messages: readonly NewMessage[]): RawBuilder<unknown> {
  return sql`session as (
    update agent_sessions set ${growth(messages)} from run where agent_sessions.id = run.session_id
    returning agent_sessions.id, last_message)`;
}

/**
 * Returns the CTE `messages`, which inserts the last messages of the row `session`. All messages except seeds belong to
 * the row `run`.
 */
export function insertMessages(messages: readonly NewMessage[]): RawBuilder<unknown> {
  return sql`messages as (
    insert into agent_messages (session_id, seq, run_id, kind, message, bytes)
    select session.id, session.last_message - ${messages.length}::int + m.place,
      case m.kind when 'seed' then null else run.id end, m.kind, m.message::json, m.bytes
    from session, run, unnest(${messages.map(({ kind }) => kind)}::text[],
      ${messages.map(({ text }) => text)}::text[], ${messages.map(({ bytes }) => bytes)}::int[])
      with ordinality as m (kind, message, bytes, place))`;
}

const growth = (messages: readonly NewMessage[]) =>
  sql`last_message = last_message + ${messages.length}::int, bytes = agent_sessions.bytes + ${bytesOf(messages)}`;

const bytesOf = (messages: readonly NewMessage[]) => messages.reduce((sum, { bytes }) => sum + bytes, 0);

/** Locks the session's row until the transaction ends, and returns the row. */
export function lockSession(tx: Db, agentId: string, id: string): Promise<SessionRow | undefined> {
  return tx
    .selectFrom("agent_sessions")
    .selectAll()
    .where("id", "=", id)
    .where("agent_id", "=", agentId)
    .forUpdate()
    .executeTakeFirst();
}

/** Key by which a trigger finds its session. Each end user and text has a key of its own. */
export interface TriggerKey {
  triggerId: string;
  key: Buffer;
  endUserId: string | null;
}

/** Locks the live session of a trigger's key until the transaction ends, and returns its row. */
export function lockTriggered(
  tx: Db,
  agentId: string,
  { triggerId, key, endUserId }: TriggerKey,
): Promise<SessionRow | undefined> {
  return tx
    .selectFrom("agent_sessions")
    .selectAll()
    .where("trigger_id", "=", triggerId)
    .where("trigger_key", "=", key)
    .where(sql<boolean>`coalesce(end_user_id, '') = ${endUserId ?? ""}`)
    .where("agent_id", "=", agentId)
    .where("ended_at", "is", null)
    .forUpdate()
    .executeTakeFirst();
}

/** Pins a session to a version. The caller holds the lock on the session's row. */
export async function pinSession(
  tx: Db,
  id: string,
  { version, at }: { version: number; at: Date },
): Promise<void> {
  await tx.updateTable("agent_sessions").set({ version, last_used_at: at }).where("id", "=", id).execute();
}

export function findSession(db: Db, agentId: string, id: string): Promise<SessionRow | undefined> {
  return db
    .selectFrom("agent_sessions")
    .selectAll()
    .where("id", "=", id)
    .where("agent_id", "=", agentId)
    .executeTakeFirst();
}

export function listSessions(
  db: Db,
  agentId: string,
  wanted: {
    status?: "idle" | "busy" | "ended" | "live" | undefined;
    endUserId?: string | undefined;
    before?: Position | undefined;
    limit: number;
  },
): Promise<(SessionRow & { created_at_text: string })[]> {
  const { status, endUserId, before } = wanted;
  let query = db
    .selectFrom("agent_sessions")
    .selectAll()
    .select(sql<string>`created_at::text`.as("created_at_text"))
    .where("agent_id", "=", agentId);
  if (status !== undefined) query = query.where("ended_at", status === "ended" ? "is not" : "is", null);
  if (status === "idle") query = query.where(sql<boolean>`not ${hasActiveRun}`);
  if (status === "busy") query = query.where(hasActiveRun);
  if (endUserId !== undefined) query = query.where("end_user_id", "=", endUserId);
  if (before !== undefined)
    query = query.where(sql<boolean>`(created_at, id) < (${before.createdAt}::timestamptz, ${before.id})`);
  return query.orderBy("created_at", "desc").orderBy("id", "desc").limit(wanted.limit).execute();
}

/** Ends the session. Returns the sessions whose machine `ending` marked. Returns undefined if a run is active. */
export async function closeSession(
  tx: Db,
  { id, at }: { id: string; at: Date },
  ending: RawBuilder<unknown>,
): Promise<string[] | undefined> {
  const { rows } = await sql<{ machine: string | null }>`
    with session as (
      update agent_sessions set ended_at = ${at} where id = ${id} and not exists (
        select from agent_runs as r where r.session_id = agent_sessions.id
          and r.status in ('queued', 'running', 'pending_approval'))
      returning id),
    messages as (delete from agent_messages using session where agent_messages.session_id = session.id),
    ${ending}
    select machines.session_id as machine from session left join machines on true`.execute(tx);
  return rows.length === 0 ? undefined : rows.flatMap(({ machine }) => machine ?? []);
}

/**
 * Returns the last messages that fit into `maxBytes`, and always those since the last input. An older summary comes
 * first.
 */
export async function lastMessages(db: Db, sessionId: string, maxBytes: number): Promise<StoredMessage[]> {
  const { rows } = await sql<StoredMessage>`
    select seq, run_id, kind, message, bytes from agent_messages
    where session_id = ${sessionId} and seq >= coalesce(least(
      (select max(seq) from agent_messages where session_id = ${sessionId} and kind = 'input'),
      (select min(seq) from (
        select seq, sum(bytes) over (order by seq desc) as bytes
        from agent_messages where session_id = ${sessionId}) as up_to
        where bytes <= ${maxBytes})), 1)
      or session_id = ${sessionId} and seq = (
        select max(seq) from agent_messages where session_id = ${sessionId} and kind = 'summary')
    order by seq`.execute(db);
  return rows;
}

/** Returns the messages after `seq`, up to `maxBytes` but at least one message. */
export async function messagesAfter(
  db: Db,
  sessionId: string,
  { seq, limit, maxBytes }: { seq: number; limit: number; maxBytes: number },
): Promise<StoredMessage[]> {
  const { rows } = await sql<StoredMessage>`
    select seq, run_id, kind, message, bytes from (
      select *, sum(bytes) over (order by seq) as up_to, row_number() over (order by seq) as place from (
        select * from agent_messages where session_id = ${sessionId} and seq > ${seq}
        order by seq limit ${limit}) as following) as measured
    where up_to <= ${maxBytes} or place = 1 order by seq`.execute(db);
  return rows;
}

/** Returns the messages after `before`, up to `last`, and the summary of the messages up to `through`. */
export async function messagesBetween(
  db: Db,
  sessionId: string,
  { before, last, through }: { before: number; last: number; through: number | null },
): Promise<{ said: StoredMessage[]; summary: StoredMessage | undefined }> {
  const said = await sql<StoredMessage>`
    select seq, run_id, kind, message, bytes from agent_messages
    where session_id = ${sessionId} and seq > ${before} and seq <= ${last} order by seq`.execute(db);
  if (through === null) return { said: said.rows, summary: undefined };
  const summary = await sql<StoredMessage>`
    select seq, run_id, kind, message, bytes from agent_messages
    where session_id = ${sessionId} and kind = 'summary' and seq <= ${last}
      and (message ->> 'through')::int = ${through}
    order by seq desc limit 1`.execute(db);
  return { said: said.rows, summary: summary.rows[0] };
}

export function lastMessage(
  db: Db,
  sessionId: string,
): Promise<Pick<StoredMessage, "kind" | "message"> | undefined> {
  return db
    .selectFrom("agent_messages")
    .select(["kind", "message"])
    .where("session_id", "=", sessionId)
    .orderBy("seq", "desc")
    .limit(1)
    .executeTakeFirst();
}

/** Counts live sessions that are pinned to this version, or have an active run with this version. */
export async function countPinned(db: Db, agentId: string, version: number): Promise<number> {
  const { count } = await db
    .selectFrom("agent_sessions")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("agent_id", "=", agentId)
    .where("ended_at", "is", null)
    // A later delivery may have pinned the session to another version while runs with this version are active.
    .where(
      sql<boolean>`(version = ${version} or exists (
        select from agent_runs as r where r.session_id = agent_sessions.id and r.version = ${version}
          and r.status in ('queued', 'running', 'pending_approval')))`,
    )
    .executeTakeFirstOrThrow();
  return Number(count);
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

// ---- erasure

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

/** Deletes sessions. The foreign keys delete their messages, runs and further rows. */
export async function deleteSessions(tx: Db, ids: readonly string[]): Promise<void> {
  await tx.deleteFrom("agent_sessions").where("id", "=", anyOf(ids)).execute();
}

const hasActiveRun = sql<boolean>`exists (select from agent_runs as r
  where r.session_id = agent_sessions.id and r.status = any(${sql.val([...activeStatuses])}::text[]))`;

/** Selects live sessions without an active run, which may expire. */
const idleSessions = (db: Db) =>
  db
    .selectFrom("agent_sessions")
    .selectAll()
    .where("ended_at", "is", null)
    .where(sql<boolean>`not ${hasActiveRun}`);

/** Lists the longest idle sessions of a workspace without a machine. Ephemeral sessions come first. */
export function findEvictable(tx: Db, workspaceId: string, limit: number): Promise<SessionRow[]> {
  return idleSessions(tx)
    .where("workspace_id", "=", workspaceId)
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom("agent_machines as m")
            .select("m.session_id")
            .whereRef("m.session_id", "=", "agent_sessions.id"),
        ),
      ),
    )
    .orderBy("is_ephemeral", "desc")
    .orderBy("last_used_at")
    .limit(limit)
    .execute();
}

/** Lists ephemeral sessions whose run has ended. */
export function findEphemeral(db: Db, limit: number): Promise<SessionRow[]> {
  return idleSessions(db).where("is_ephemeral", "=", true).limit(limit).execute();
}

/** Lists sessions that were unused for their `idle_minutes`, the longest idle first. */
export function findExpired(db: Db, now: Date, limit: number): Promise<SessionRow[]> {
  const since = sql<Date>`${now}::timestamptz - idle_minutes * interval '1 minute'`;
  return (
    idleSessions(db)
      .where("last_used_at", "<", since)
      // A session counts as used until its last run ends, because a long run ends after the session's last use.
      .where((eb) =>
        eb.not(
          eb.exists(
            eb
              .selectFrom("agent_runs as r")
              .select("r.id")
              .whereRef("r.session_id", "=", "agent_sessions.id")
              .where("r.finished_at", ">=", since),
          ),
        ),
      )
      .orderBy("last_used_at")
      .limit(limit)
      .execute()
  );
}

/** Locks the workspace's counts of sessions and runs until the transaction ends. */
export async function lockCounts(tx: Db, workspaceId: string): Promise<void> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 42))`.execute(tx);
}
