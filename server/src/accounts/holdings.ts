/**
 * Resources that a workspace still has. Accounts does not know sandboxes or projects: `main` passes in a count function
 * for each kind of resource. A team can be deleted only when it has none.
 */
import { type RawBuilder, sql } from "kysely";
import type { Db } from "#schema.ts";

export interface Holding {
  /** Name of the resource in the plural, as people see it: "sandboxes". */
  noun: string;
  /** Counts the existing resources of the workspace. */
  count: (db: Db, workspaceId: string) => Promise<number>;
}

/**
 * Rows that a job needs to find the machines and files of deleted projects, functions and volumes. If the rows were
 * deleted with the workspace, apps and databases would run on without an owner.
 */
const inDeletion = (workspaceId: string): Readonly<Record<string, RawBuilder<unknown>>> => ({
  apps: sql`select from app_instances as i join environments as e on e.id = i.environment_id
    join projects as p on p.id = e.project_id
    where p.workspace_id = ${workspaceId} and p.deleted_at is not null`,
  "add-ons": sql`select from addons as a join projects as p on p.id = a.project_id
    where p.workspace_id = ${workspaceId} and p.deleted_at is not null`,
  functions: sql`select from function_instances as i join functions as f on f.id = i.function_id
    where f.workspace_id = ${workspaceId} and f.deleted_at is not null`,
  volumes: sql`select from sandbox_volumes where workspace_id = ${workspaceId} and deleted_at is not null`,
});

/** Lists remaining resources, such as "2 sandboxes" or "1 apps in deletion". Empty if none remain. */
export async function listHoldings(
  db: Db,
  holdings: readonly Holding[],
  workspaceId: string,
): Promise<string[]> {
  const left: string[] = [];
  for (const { noun, count } of holdings) {
    const number = await count(db, workspaceId);
    if (number > 0) left.push(`${number} ${noun}`);
  }
  for (const [noun, query] of Object.entries(inDeletion(workspaceId))) {
    const { rows } = await query.execute(db);
    if (rows.length > 0) left.push(`${rows.length} ${noun} in deletion`);
  }
  return left;
}
