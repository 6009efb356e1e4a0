/** All SQL of git's own tables, and of the columns of projects that git uses. */
import type { Selectable } from "kysely";
import type { Db } from "#schema.ts";
import type { HookDelivery, ProjectsTable } from "../projects/tables.ts";

export type ProjectRow = Selectable<ProjectsTable>;

export async function saveKnownHosts(db: Db, projectId: string, lines: string): Promise<void> {
  await db.updateTable("projects").set({ known_hosts: lines }).where("id", "=", projectId).execute();
}

/** Returns a project by its slug. The caller checks access. */
export function findBySlug(db: Db, slug: string): Promise<ProjectRow | undefined> {
  return db
    .selectFrom("projects")
    .selectAll()
    .where("name", "=", slug)
    .where("deleted_at", "is", null)
    .executeTakeFirst();
}

/** Returns the branches that environments of the project follow. */
export async function followedBranches(db: Db, projectId: string): Promise<string[]> {
  const rows = await db
    .selectFrom("environments")
    .select("branch")
    .where("project_id", "=", projectId)
    .orderBy("created_at")
    .execute();
  return [...new Set(rows.map(({ branch }) => branch))];
}

// ---- handled heads

export async function listHeads(db: Db, projectId: string): Promise<Map<string, string>> {
  const rows = await db.selectFrom("git_heads").selectAll().where("project_id", "=", projectId).execute();
  return new Map(rows.map(({ branch, sha }) => [branch, sha]));
}

export async function saveHead(db: Db, projectId: string, branch: string, sha: string): Promise<void> {
  await db
    .insertInto("git_heads")
    .values({ project_id: projectId, branch, sha })
    .onConflict((conflict) => conflict.columns(["project_id", "branch"]).doUpdateSet({ sha }))
    .execute();
}

export async function deleteHeads(db: Db, projectId: string, branches: readonly string[]): Promise<void> {
  if (branches.length === 0) return;
  await db
    .deleteFrom("git_heads")
    .where("project_id", "=", projectId)
    .where("branch", "in", [...branches])
    .execute();
}

/** Lists the projects whose repository is hosted here. */
export function listHosted(db: Db): Promise<ProjectRow[]> {
  return db
    .selectFrom("projects")
    .selectAll()
    .where("repo_url", "is", null)
    .where("deleted_at", "is", null)
    .execute();
}

// ---- webhooks

export function findByHook(db: Db, hookId: string): Promise<ProjectRow | undefined> {
  return db
    .selectFrom("projects")
    .selectAll()
    .where("hook_id", "=", hookId)
    .where("deleted_at", "is", null)
    .executeTakeFirst();
}

export function changeHook(
  tx: Db,
  projectId: string,
  change: Pick<ProjectRow, "auto_deploy" | "updated_at"> & Partial<Pick<ProjectRow, "hook_secret_sealed">>,
): Promise<ProjectRow> {
  return tx
    .updateTable("projects")
    .set(change)
    .where("id", "=", projectId)
    .returningAll()
    .executeTakeFirstOrThrow();
}

export async function saveDelivery(
  db: Db,
  projectId: string,
  delivery: HookDelivery,
  provider: string | null,
): Promise<void> {
  await db
    .updateTable("projects")
    .set({
      hook_last_delivery: JSON.stringify(delivery),
      ...(provider === null ? {} : { hook_provider: provider }),
    })
    .where("id", "=", projectId)
    .execute();
}

export async function isDelivered(db: Db, projectId: string, deliveryId: string): Promise<boolean> {
  const row = await db
    .selectFrom("git_deliveries")
    .select("at")
    .where("project_id", "=", projectId)
    .where("delivery_id", "=", deliveryId)
    .executeTakeFirst();
  return row !== undefined;
}

/** Stores the id of a delivery, and deletes the project's ids older than `since`. */
export async function insertDeliveryId(
  db: Db,
  projectId: string,
  deliveryId: string,
  { at, since }: { at: Date; since: Date },
): Promise<void> {
  await db
    .insertInto("git_deliveries")
    .values({ project_id: projectId, delivery_id: deliveryId, at })
    .onConflict((conflict) => conflict.doNothing())
    .execute();
  await db.deleteFrom("git_deliveries").where("project_id", "=", projectId).where("at", "<", since).execute();
}
