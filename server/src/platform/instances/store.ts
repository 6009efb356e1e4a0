/** All SQL of the tables function_instances and function_minutes, and the reads of functions that this folder needs. */
import { type Selectable, sql } from "kysely";
import type { Db, Transaction } from "#schema.ts";
import type { CountedMinute } from "../metrics/store.ts";
import type {
  FunctionInstancesTable,
  FunctionMinutesTable,
  FunctionsTable,
  FunctionVersionsTable,
} from "../functions/tables.ts";

export type InstanceRow = Selectable<FunctionInstancesTable>;
export type InstanceState = InstanceRow["state"];
export type VersionRow = Selectable<FunctionVersionsTable>;

/** Columns of a function that the running functions need. */
export type ServedRow = Pick<
  Selectable<FunctionsTable>,
  | "id"
  | "workspace_id"
  | "name"
  | "auth_mode"
  | "api_key_hash"
  | "idle_timeout_seconds"
  | "env_sealed"
  | "memory_mb"
  | "timeout_seconds"
  | "live_version_id"
> & { plan: "starter" | "pro" | "team" };

/** Lists functions: all of them, or the one with this id. Deleted functions are left out. */
export function listServed(db: Db, id?: string): Promise<ServedRow[]> {
  const query = db
    .selectFrom("functions as f")
    .innerJoin("workspaces as w", "w.id", "f.workspace_id")
    .select([
      "f.id",
      "f.workspace_id",
      "f.name",
      "f.auth_mode",
      "f.api_key_hash",
      "f.idle_timeout_seconds",
      "f.env_sealed",
      "f.memory_mb",
      "f.timeout_seconds",
      "f.live_version_id",
      "w.plan",
    ])
    .where("f.deleted_at", "is", null);
  return (id === undefined ? query : query.where("f.id", "=", id)).execute();
}

export function findVersion(db: Db, id: string): Promise<VersionRow | undefined> {
  return db.selectFrom("function_versions").selectAll().where("id", "=", id).executeTakeFirst();
}

/** Returns the function that an instance serves. */
export function findFunctionOf(
  db: Db,
  instanceId: string,
): Promise<{ id: string; name: string; workspace_id: string } | undefined> {
  return db
    .selectFrom("function_instances as i")
    .innerJoin("functions as f", "f.id", "i.function_id")
    .select(["f.id", "f.name", "f.workspace_id"])
    .where("i.id", "=", instanceId)
    .executeTakeFirst();
}

/** Lists instances, and whether their versions are live. */
export async function listInstances(db: Db): Promise<(InstanceRow & { is_live: boolean })[]> {
  return db
    .selectFrom("function_instances as i")
    .leftJoin("functions as f", (join) =>
      join
        .onRef("f.id", "=", "i.function_id")
        .onRef("f.live_version_id", "=", "i.version_id")
        .on("f.deleted_at", "is", null),
    )
    .selectAll("i")
    .select(sql<boolean>`f.id is not null`.as("is_live"))
    .orderBy("i.created_at")
    .execute();
}

/** Inserts an instance. Returns undefined if the function is deleted. */
export async function insertInstance(
  tx: Transaction,
  row: Pick<InstanceRow, "id" | "function_id" | "version_id" | "env_sealed" | "created_at">,
): Promise<InstanceRow | undefined> {
  const owner = await tx
    .selectFrom("functions")
    .select("id")
    .where("id", "=", row.function_id)
    .where("deleted_at", "is", null)
    .forShare()
    .executeTakeFirst();
  if (!owner) return undefined;
  return tx
    .insertInto("function_instances")
    .values({ ...row, state: "starting", last_used_at: row.created_at })
    .returningAll()
    .executeTakeFirst();
}

/** Changes an instance's state. Returns false if the instance is deleted, or in none of the states `from`. */
export async function moveInstance(
  db: Db,
  id: string,
  from: readonly InstanceState[],
  to: InstanceState,
  lastUsedAt?: Date,
): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable("function_instances")
    .set({ state: to, ...(lastUsedAt ? { last_used_at: lastUsedAt } : {}) })
    .where("id", "=", id)
    .where("state", "in", from)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

export async function deleteInstance(tx: Db, id: string): Promise<void> {
  await tx.deleteFrom("function_instances").where("id", "=", id).execute();
}

/**
 * Stores counted minutes. Replaces earlier counts of the same process and minute, and drops minutes of deleted
 * functions.
 */
export async function writeMinutes(db: Db, rows: readonly CountedMinute[]): Promise<void> {
  if (rows.length === 0) return;
  await sql`
    insert into function_minutes (function_id, minute, writer, requests, errors, latencies, cold_starts, wakes)
    select seen.* from unnest(
      ${sql.val(rows.map(({ id }) => id))}::uuid[],
      ${sql.val(rows.map(({ minute }) => minute))}::timestamptz[],
      ${sql.val(rows.map(({ writer }) => writer))}::uuid[],
      ${sql.val(rows.map(({ requests }) => requests))}::int[],
      ${sql.val(rows.map(({ errors }) => errors))}::int[],
      ${sql.val(rows.map(({ latencies }) => latencies))}::bytea[],
      ${sql.val(rows.map(({ coldStarts }) => coldStarts))}::int[],
      ${sql.val(rows.map(({ wakes }) => wakes))}::bytea[]
    ) as seen (function_id, minute, writer, requests, errors, latencies, cold_starts, wakes)
    join functions on functions.id = seen.function_id
    on conflict (function_id, minute, writer) do update
    set requests = excluded.requests, errors = excluded.errors, latencies = excluded.latencies,
      cold_starts = excluded.cold_starts, wakes = excluded.wakes`.execute(db);
}

export function readMinutes(
  db: Db,
  functionId: string,
  from: Date,
): Promise<Selectable<FunctionMinutesTable>[]> {
  return db
    .selectFrom("function_minutes")
    .selectAll()
    .where("function_id", "=", functionId)
    .where("minute", ">=", from)
    .orderBy("minute")
    .execute();
}

export async function forgetMinutesBefore(db: Db, before: Date): Promise<void> {
  await db.deleteFrom("function_minutes").where("minute", "<", before).execute();
}
