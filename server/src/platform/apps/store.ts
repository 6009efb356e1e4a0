/** All SQL of the table app_instances, and the columns of environments that record the serving instance. */
import { type Selectable, sql } from "kysely";
import type { Db, Transaction } from "#schema.ts";
import { type InstanceState, moves } from "./states.ts";
import type { AppInstancesTable } from "./tables.ts";

export type InstanceRow = Selectable<AppInstancesTable>;

/** An environment and its serving instance, as the ingress needs them. */
export interface ServedRow {
  environment_id: string;
  project_id: string;
  workspace_id: string;
  host_label: string;
  instance_id: string | null;
  state: "live" | "asleep" | null;
  port: number | null;
  /** True if the newest deployment failed. */
  has_failed: boolean;
}

export function insertInstance(
  tx: Transaction,
  row: Pick<InstanceRow, "id" | "environment_id" | "deployment_id" | "run" | "env_sealed" | "created_at">,
): Promise<InstanceRow> {
  return tx
    .insertInto("app_instances")
    .values({ ...row, run: JSON.stringify(row.run), state: "starting" })
    .returningAll()
    .executeTakeFirstOrThrow();
}

export function listInstances(db: Db): Promise<InstanceRow[]> {
  return db.selectFrom("app_instances").selectAll().orderBy("created_at").execute();
}

export function findInstance(db: Db, id: string): Promise<InstanceRow | undefined> {
  return db.selectFrom("app_instances").selectAll().where("id", "=", id).executeTakeFirst();
}

/** Returns the instance that serves an environment, live or asleep. */
export function findServing(db: Db, environmentId: string): Promise<InstanceRow | undefined> {
  return db
    .selectFrom("app_instances")
    .selectAll()
    .where("environment_id", "=", environmentId)
    .where("state", "in", ["live", "asleep"])
    .executeTakeFirst();
}

/**
 * Changes the state. Returns undefined if the current state allows no such transition, or if the instance is deleted.
 */
export function move(db: Db, id: string, to: InstanceState): Promise<InstanceRow | undefined> {
  const from = (Object.keys(moves) as InstanceState[]).filter((state) => moves[state].includes(to));
  return db
    .updateTable("app_instances")
    .set({ state: to })
    .where("id", "=", id)
    .where("state", "in", from)
    .returningAll()
    .executeTakeFirst();
}

export function update(
  db: Db,
  id: string,
  change: Partial<
    Pick<
      InstanceRow,
      | "env_sealed"
      | "starts"
      | "restart_count"
      | "crashes_in_row"
      | "last_exit_code"
      | "last_exit"
      | "crashed"
      | "started_at"
    >
  >,
): Promise<InstanceRow | undefined> {
  return db.updateTable("app_instances").set(change).where("id", "=", id).returningAll().executeTakeFirst();
}

export async function deleteInstance(tx: Db, id: string): Promise<void> {
  await tx.deleteFrom("app_instances").where("id", "=", id).execute();
}

/** Locks the environment, so that its switches run one after the other. Returns false if the environment is deleted. */
export async function lockEnvironment(tx: Transaction, id: string): Promise<boolean> {
  const row = await tx
    .selectFrom("environments")
    .select("id")
    .where("id", "=", id)
    .forUpdate()
    .executeTakeFirst();
  return row !== undefined;
}

export async function setServed(
  tx: Transaction,
  environmentId: string,
  change: { live_deployment_id?: string | null; asleep_since: Date | null },
): Promise<void> {
  await tx.updateTable("environments").set(change).where("id", "=", environmentId).execute();
}

export async function findAsleepSince(db: Db, environmentId: string): Promise<Date | null> {
  const row = await db
    .selectFrom("environments")
    .select("asleep_since")
    .where("id", "=", environmentId)
    .executeTakeFirst();
  return row?.asleep_since ?? null;
}

export async function isSuspended(db: Db, environmentId: string): Promise<boolean> {
  const row = await db
    .selectFrom("environments")
    .innerJoin("projects", "projects.id", "environments.project_id")
    .innerJoin("workspaces", "workspaces.id", "projects.workspace_id")
    .select("workspaces.suspended_at")
    .where("environments.id", "=", environmentId)
    .executeTakeFirst();
  return (row?.suspended_at ?? null) !== null;
}

export async function isBeingDeployed(db: Db, environmentId: string): Promise<boolean> {
  const row = await db
    .selectFrom("deployments")
    .select("id")
    .where("environment_id", "=", environmentId)
    .where("status", "in", ["queued", "building", "deploying"])
    .limit(1)
    .executeTakeFirst();
  return row !== undefined;
}

export async function environmentsOf(db: Db, projectId: string): Promise<string[]> {
  const rows = await db.selectFrom("environments").select("id").where("project_id", "=", projectId).execute();
  return rows.map(({ id }) => id);
}

/** Lists environments with their serving instance: one environment, those of a project, or all. */
export function listServed(
  db: Db,
  { environmentId, projectId }: { environmentId?: string; projectId?: string } = {},
): Promise<ServedRow[]> {
  return db
    .selectFrom("environments as e")
    .innerJoin("projects as p", "p.id", "e.project_id")
    .leftJoin("app_instances as i", (join) =>
      join.onRef("i.environment_id", "=", "e.id").on("i.state", "in", ["live", "asleep"]),
    )
    .select([
      "e.id as environment_id",
      "e.project_id",
      "p.workspace_id",
      "e.host_label",
      "i.id as instance_id",
      sql<ServedRow["state"]>`i.state`.as("state"),
      sql<number | null>`(i.run ->> 'port')::int`.as("port"),
      sql<boolean>`coalesce((
        select d.status = 'failed' from deployments d where d.environment_id = e.id
        order by d.number desc limit 1
      ), false)`.as("has_failed"),
    ])
    .where("p.deleted_at", "is", null)
    .where("e.deleted_at", "is", null)
    .$if(environmentId !== undefined, (query) => query.where("e.id", "=", environmentId!))
    .$if(projectId !== undefined, (query) => query.where("e.project_id", "=", projectId!))
    .execute();
}

export function findOwner(
  db: Db,
  environmentId: string,
): Promise<{ workspace_id: string; host_label: string } | undefined> {
  return db
    .selectFrom("environments as e")
    .innerJoin("projects as p", "p.id", "e.project_id")
    .select(["p.workspace_id", "e.host_label"])
    .where("e.id", "=", environmentId)
    .executeTakeFirst();
}
