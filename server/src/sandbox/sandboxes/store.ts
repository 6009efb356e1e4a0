/** All SQL of the sandboxes table. The workspaces a caller can reach are an argument of every read. */
import { type Kysely, type Selectable, sql, type Transaction } from "kysely";
import type { Database } from "#db/db.ts";
import type { Status } from "./states.ts";
import type { SandboxesTable, TerminationReason } from "./tables.ts";

type Queryable = Kysely<Database> | Transaction<Database>;

/** A sandbox and the machine that runs it now, if any. */
export type SandboxRow = Selectable<SandboxesTable> & { machine_id: string | null };

const machineId = sql<string | null>`(
  select m.id from machines m
  where m.owner_kind = 'sandbox' and m.owner_id = sandboxes.id and m.desired <> 'removed'
)`.as("machine_id");

export function findSandbox(
  db: Queryable,
  id: string,
  workspaceIds: readonly string[],
): Promise<SandboxRow | undefined> {
  return db
    .selectFrom("sandboxes")
    .selectAll()
    .select(machineId)
    .where("id", "=", id)
    .where("workspace_id", "=", sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`)
    .executeTakeFirst();
}

export interface ListFilter {
  workspaceIds: readonly string[];
  status?: Status | undefined;
  metadata?: Record<string, string> | undefined;
  before?: { createdAt: string; id: string } | undefined;
  limit: number;
}

/** Newest first; `created_at_text` keeps the microseconds that a Date drops, for the cursor. */
export function listSandboxes(
  db: Queryable,
  filter: ListFilter,
): Promise<(SandboxRow & { created_at_text: string })[]> {
  let query = db
    .selectFrom("sandboxes")
    .selectAll()
    .select([machineId, sql<string>`created_at::text`.as("created_at_text")])
    .where("workspace_id", "=", sql<string>`any(${sql.val([...filter.workspaceIds])}::uuid[])`)
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .limit(filter.limit);
  if (filter.status) query = query.where("status", "=", filter.status);
  if (filter.metadata && Object.keys(filter.metadata).length > 0) {
    query = query.where(sql<boolean>`metadata @> ${JSON.stringify(filter.metadata)}::jsonb`);
  }
  if (filter.before) {
    const { createdAt, id } = filter.before;
    query = query.where(sql<boolean>`(created_at, id) < (${createdAt}::timestamptz, ${id})`);
  }
  return query.execute();
}

export type NewSandbox = Pick<
  Selectable<SandboxesTable>,
  | "id"
  | "workspace_id"
  | "template"
  | "size"
  | "cpu"
  | "memory_mb"
  | "network"
  | "region"
  | "on_timeout"
  | "auto_resume"
  | "timeout_seconds"
  | "expires_at"
  | "preview_token_sealed"
  | "allow_domains"
  | "created_at"
> & { metadata: Record<string, string> };

export async function insertSandbox(tx: Transaction<Database>, sandbox: NewSandbox): Promise<SandboxRow> {
  const row = await tx
    .insertInto("sandboxes")
    .values({
      ...sandbox,
      metadata: JSON.stringify(sandbox.metadata),
      status: "running",
      transition: null,
      termination_reason: null,
      running_since: sandbox.created_at,
      terminated_at: null,
    })
    .returningAll()
    .executeTakeFirstOrThrow();
  return { ...row, machine_id: null };
}

/** Counts what runs or is paused, with creates of the same workspace held off until this transaction ends. */
export async function lockAndCountLive(tx: Transaction<Database>, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 1))`.execute(tx);
  return countLiveRows(tx, workspaceId);
}

export async function countLiveRows(db: Queryable, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("sandboxes")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .where("status", "in", ["running", "paused"])
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Undefined where it was terminated already: of two who end it, one does. */
export async function terminateRow(
  tx: Queryable,
  id: string,
  ending: { reason: TerminationReason; at: Date; cpuSeconds: number; expiredBy?: Date },
): Promise<Selectable<SandboxesTable> | undefined> {
  let update = tx
    .updateTable("sandboxes")
    .set({
      status: "terminated",
      transition: null,
      termination_reason: ending.reason,
      terminated_at: ending.at,
      cpu_seconds: sql<number>`cpu_seconds + ${ending.cpuSeconds}`,
      running_seconds: sql<number>`running_seconds + coalesce(greatest(0, extract(epoch from ${ending.at}::timestamptz - running_since)), 0)`,
      running_since: null,
    })
    .where("id", "=", id)
    .where("status", "<>", "terminated");
  // A keep-alive may have come between the look and the end of it.
  if (ending.expiredBy) update = update.where("expires_at", "<=", ending.expiredBy);
  return update.returningAll().executeTakeFirst();
}

export function extendRow(
  db: Queryable,
  id: string,
  timeoutSeconds: number,
  expiresAt: Date,
): Promise<Selectable<SandboxesTable> | undefined> {
  return db
    .updateTable("sandboxes")
    .set({ timeout_seconds: timeoutSeconds, expires_at: expiresAt })
    .where("id", "=", id)
    .where("status", "=", "running")
    .returningAll()
    .executeTakeFirst();
}

export function findExpired(db: Queryable, now: Date): Promise<{ id: string; machine_id: string | null }[]> {
  return db
    .selectFrom("sandboxes")
    .select(["id", machineId])
    .where("status", "=", "running")
    .where("expires_at", "<=", now)
    .orderBy("expires_at")
    .limit(100)
    .execute();
}

export async function deleteTerminatedBefore(db: Queryable, before: Date): Promise<void> {
  await db
    .deleteFrom("sandboxes")
    .where("status", "=", "terminated")
    .where("terminated_at", "<", before)
    .execute();
}

/** The row without its owner's leave: for what the machine layer tells us of. */
export function findById(db: Queryable, id: string): Promise<Selectable<SandboxesTable> | undefined> {
  return db.selectFrom("sandboxes").selectAll().where("id", "=", id).executeTakeFirst();
}

/** What the sandbox of a restricted machine may reach: null where it is the default; undefined where it is none. */
export async function findAllowDomains(db: Queryable, machine: string): Promise<string[] | null | undefined> {
  const row = await db
    .selectFrom("machines")
    .innerJoin("sandboxes", "sandboxes.id", "machines.owner_id")
    .select("sandboxes.allow_domains")
    .where("machines.id", "=", machine)
    .where("machines.owner_kind", "=", "sandbox")
    .where("machines.desired", "<>", "removed")
    .where("machines.network", "=", "restricted")
    .executeTakeFirst();
  return row?.allow_domains;
}
