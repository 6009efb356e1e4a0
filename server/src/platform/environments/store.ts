/** All SQL of the environments table. The caller checks access to the project, whose id is an argument. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { DeploymentsTable } from "../deployments/tables.ts";
import type { EnvironmentsTable } from "./tables.ts";

export type EnvironmentRow = Selectable<EnvironmentsTable>;

/** Columns of a deployment that lists of environments contain. */
export type LastDeploymentRow = Pick<
  Selectable<DeploymentsTable>,
  | "id"
  | "number"
  | "status"
  | "commit_sha"
  | "commit_message"
  | "commit_author"
  | "created_at"
  | "started_at"
  | "finished_at"
>;

/** An environment with its newest deployment. */
export type EnvironmentView = EnvironmentRow & { last: LastDeploymentRow | null };

/** Lists production first, then the others, newest first. */
export async function listViews(db: Db, projectIds: readonly string[]): Promise<EnvironmentView[]> {
  if (projectIds.length === 0) return [];
  const rows = await db
    .selectFrom("environments as e")
    .leftJoinLateral(
      (eb) =>
        eb
          .selectFrom("deployments as d")
          .selectAll("d")
          .whereRef("d.environment_id", "=", "e.id")
          .orderBy("d.created_at", "desc")
          .orderBy("d.id", "desc")
          .limit(1)
          .as("d"),
      (join) => join.onTrue(),
    )
    .selectAll("e")
    .select([
      "d.id as last_id",
      "d.number as last_number",
      "d.status as last_status",
      "d.commit_sha",
      "d.commit_message",
      "d.commit_author",
      "d.created_at as last_created_at",
      "d.started_at",
      "d.finished_at",
    ])
    .where("e.project_id", "=", among(projectIds))
    .where("e.deleted_at", "is", null)
    .orderBy(sql`e.kind = 'production'`, "desc")
    .orderBy("e.created_at", "desc")
    .orderBy("e.id", "desc")
    .execute();
  return rows.map(
    ({ last_id, last_number, last_status, last_created_at, commit_sha, commit_message, ...row }) => {
      const { commit_author, started_at, finished_at, ...environment } = row;
      const last =
        last_id === null
          ? null
          : {
              id: last_id,
              number: last_number!,
              status: last_status!,
              commit_sha,
              commit_message,
              commit_author,
              created_at: last_created_at!,
              started_at,
              finished_at,
            };
      return { ...environment, last };
    },
  );
}

/**
 * Returns an environment of the project; undefined for one of another project, or a deleted one. Without `id`, returns
 * production.
 */
export function findRow(
  db: Db,
  projectId: string,
  id: string | undefined,
): Promise<EnvironmentRow | undefined> {
  const rows = of(db, projectId);
  return (
    id === undefined ? rows.where("kind", "=", "production") : rows.where("id", "=", id)
  ).executeTakeFirst();
}

/** Locks the environment until the transaction ends. */
export function lockRow(tx: Db, projectId: string, id: string): Promise<EnvironmentRow | undefined> {
  return of(tx, projectId).where("id", "=", id).forUpdate().executeTakeFirst();
}

export function listRows(db: Db, projectId: string): Promise<EnvironmentRow[]> {
  return of(db, projectId).execute();
}

/** Lists all environments of a project. Deleted environments are included. */
export function listAll(db: Db, projectId: string): Promise<EnvironmentRow[]> {
  return db.selectFrom("environments").selectAll().where("project_id", "=", projectId).execute();
}

export function insertRow(tx: Db, row: Insertable<EnvironmentsTable>): Promise<EnvironmentRow> {
  return tx.insertInto("environments").values(row).returningAll().executeTakeFirstOrThrow();
}

export function changeRow(
  tx: Db,
  id: string,
  change: Partial<Pick<EnvironmentRow, "branch" | "size" | "env_sealed" | "host_label" | "updated_at">>,
): Promise<EnvironmentRow> {
  return tx
    .updateTable("environments")
    .set(change)
    .where("id", "=", id)
    .returningAll()
    .executeTakeFirstOrThrow();
}

/** Marks environments as deleted, which frees names and hosts. The placeholder is not a valid host label. */
export async function markDeleted(tx: Db, ids: readonly string[], now: Date): Promise<void> {
  await tx
    .updateTable("environments")
    .set({ deleted_at: now, name: sql<string>`'~' || id::text`, host_label: sql<string>`'~' || id::text` })
    .where("id", "=", among(ids))
    .execute();
}

export async function deleteRow(db: Db, id: string): Promise<void> {
  await db.deleteFrom("environments").where("id", "=", id).where("deleted_at", "is not", null).execute();
}

/** True if any of these environments has a live, queued or running deployment. */
export async function isAnyDeployed(db: Db, ids: readonly string[]): Promise<boolean> {
  const found = await db
    .selectFrom("environments")
    .select("id")
    .where("id", "=", among(ids))
    .where("live_deployment_id", "is not", null)
    .executeTakeFirst();
  return found !== undefined || (await isAnyUnderWay(db, ids));
}

/** True if any of these environments has a queued or running deployment. */
export async function isAnyUnderWay(db: Db, ids: readonly string[]): Promise<boolean> {
  const found = await db
    .selectFrom("deployments")
    .select("id")
    .where("environment_id", "=", among(ids))
    .where("status", "in", ["queued", "building", "deploying"])
    .executeTakeFirst();
  return found !== undefined;
}

/** Returns the encrypted variables of an environment and of its project; undefined if there is no such environment. */
export function findSealed(db: Db, environmentId: string) {
  return db
    .selectFrom("environments as e")
    .innerJoin("projects as p", "p.id", "e.project_id")
    .select(["e.id", "e.env_sealed", "p.id as project_id", "p.env_sealed as project_env_sealed"])
    .where("e.id", "=", environmentId)
    .executeTakeFirst();
}

const among = (ids: readonly string[]) => sql<string>`any(${sql.val([...ids])}::uuid[])`;

const of = (db: Db, projectId: string) =>
  db
    .selectFrom("environments")
    .selectAll()
    .where("project_id", "=", projectId)
    .where("deleted_at", "is", null);
