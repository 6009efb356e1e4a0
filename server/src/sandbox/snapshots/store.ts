/** All SQL of named snapshots. The workspaces a caller can reach are an argument of every read. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db, Transaction } from "#schema.ts";
import type { SandboxSnapshotsTable } from "./tables.ts";

/** A snapshot with the facts about its bytes. */
export type NamedRow = Selectable<SandboxSnapshotsTable> & { bytes: number; damaged: boolean };

const among = (workspaceIds: readonly string[]) => sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`;

function selectNamed(db: Db, workspaceIds: readonly string[]) {
  return db
    .selectFrom("sandbox_snapshots")
    .innerJoin("snapshots", "snapshots.id", "sandbox_snapshots.id")
    .selectAll("sandbox_snapshots")
    .select(["snapshots.bytes", "snapshots.damaged"])
    .where("sandbox_snapshots.workspace_id", "=", among(workspaceIds));
}

export function findNamed(
  db: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<NamedRow | undefined> {
  return selectNamed(db, workspaceIds).where("sandbox_snapshots.id", "=", id).executeTakeFirst();
}

export function findByName(db: Db, name: string, workspaceId: string): Promise<NamedRow | undefined> {
  return selectNamed(db, [workspaceId]).where("sandbox_snapshots.name", "=", name).executeTakeFirst();
}

/** Lists by creation time. `created_at_text` keeps the microseconds for the cursor, which a Date drops. */
export function listNamed(
  db: Db,
  page: {
    workspaceIds: readonly string[];
    sandboxId?: string | undefined;
    name?: string | undefined;
    template?: string | undefined;
    damaged?: boolean | undefined;
    createdAfter?: string | undefined;
    createdBefore?: string | undefined;
    order: "newest" | "oldest";
    /** Last row of the previous page. */
    from?: { createdAt: string; id: string } | undefined;
    limit: number;
  },
): Promise<(NamedRow & { created_at_text: string })[]> {
  let query = selectNamed(db, page.workspaceIds)
    .select(sql<string>`sandbox_snapshots.created_at::text`.as("created_at_text"))
    .orderBy("sandbox_snapshots.created_at", page.order === "newest" ? "desc" : "asc")
    .orderBy("sandbox_snapshots.id", page.order === "newest" ? "desc" : "asc")
    .limit(page.limit);
  const { sandboxId, name, template, damaged, createdAfter, createdBefore } = page;
  if (sandboxId !== undefined) query = query.where("sandbox_snapshots.sandbox_id", "=", sandboxId);
  if (name !== undefined) query = query.where("sandbox_snapshots.name", "=", name);
  if (template !== undefined) query = query.where("sandbox_snapshots.template", "=", template);
  if (damaged !== undefined) query = query.where("snapshots.damaged", "=", damaged);
  if (createdAfter !== undefined)
    query = query.where(sql<boolean>`sandbox_snapshots.created_at >= ${createdAfter}::timestamptz`);
  if (createdBefore !== undefined)
    query = query.where(sql<boolean>`sandbox_snapshots.created_at < ${createdBefore}::timestamptz`);
  if (page.from) {
    const { createdAt, id } = page.from;
    const follows = page.order === "newest" ? sql`<` : sql`>`;
    query = query.where(
      sql<boolean>`(sandbox_snapshots.created_at, sandbox_snapshots.id) ${follows} (${createdAt}::timestamptz, ${id})`,
    );
  }
  return query.execute();
}

/** Counts a workspace's snapshots, and blocks new snapshots until this transaction ends. */
export async function lockAndCountNamed(tx: Transaction, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 4))`.execute(tx);
  return countNamed(tx, workspaceId);
}

export async function countNamed(db: Db, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("sandbox_snapshots")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .executeTakeFirstOrThrow();
  return Number(count);
}

export async function insertNamed(
  tx: Transaction,
  snapshot: Insertable<SandboxSnapshotsTable>,
): Promise<void> {
  await tx.insertInto("sandbox_snapshots").values(snapshot).execute();
}

/** Extends the retention after a use. */
export async function extendRetention(db: Db, id: string, expiresAt: Date | null): Promise<void> {
  await db.updateTable("sandbox_snapshots").set({ expires_at: expiresAt }).where("id", "=", id).execute();
}

export function deleteNamed(
  tx: Transaction,
  id: string,
  only: { workspaceIds: readonly string[] } | { expiredBy: Date },
): Promise<Selectable<SandboxSnapshotsTable> | undefined> {
  const query = tx.deleteFrom("sandbox_snapshots").where("id", "=", id);
  const one =
    "expiredBy" in only
      ? query.where("expires_at", "<=", only.expiredBy)
      : query.where("workspace_id", "=", among(only.workspaceIds));
  return one.returningAll().executeTakeFirst();
}

export function findExpiredNamed(db: Db, now: Date): Promise<{ id: string }[]> {
  return db
    .selectFrom("sandbox_snapshots")
    .select("id")
    .where("expires_at", "<=", now)
    .orderBy("expires_at")
    .limit(100)
    .execute();
}
