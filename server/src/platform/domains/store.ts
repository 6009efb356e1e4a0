/** All SQL of the projects' domain columns, and of the served names. */
import { type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { ProjectsTable } from "../projects/tables.ts";
import type { DomainState } from "./states.ts";

export type DomainRow = Pick<
  Selectable<ProjectsTable>,
  "id" | "name" | "workspace_id" | "domain_checked_at" | "domain_error" | "domain_misses"
> & { custom_domain: string; domain_status: "pending" | "verified" | "failed" };

const columns = [
  "id",
  "name",
  "workspace_id",
  "custom_domain",
  "domain_status",
  "domain_checked_at",
  "domain_error",
  "domain_misses",
] as const;

const withDomain = (db: Db) =>
  db
    .selectFrom("projects")
    .select(columns)
    .where("custom_domain", "is not", null)
    .where("domain_status", "is not", null)
    .where("deleted_at", "is", null)
    .$narrowType<{ custom_domain: string; domain_status: DomainRow["domain_status"] }>();

/** Lists the domains of these workspaces, newest project first. */
export function listDomainRows(db: Db, workspaceIds: readonly string[]): Promise<DomainRow[]> {
  return withDomain(db)
    .where("workspace_id", "=", sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`)
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .execute();
}

export function findDomain(db: Db, projectId: string): Promise<DomainRow | undefined> {
  return withDomain(db).where("id", "=", projectId).executeTakeFirst();
}

/** Locks a project's domain. Returns undefined if the project now has another name, or none. */
export function lockDomain(
  tx: Db,
  { id, custom_domain }: Pick<DomainRow, "id" | "custom_domain">,
): Promise<DomainRow | undefined> {
  return withDomain(tx)
    .where("id", "=", id)
    .where("custom_domain", "=", custom_domain)
    .forUpdate()
    .executeTakeFirst();
}

/** True if another project has the name verified. Blocks other claims to the name until the transaction ends. */
export async function isVerifiedElsewhere(
  tx: Db,
  { id, custom_domain }: Pick<DomainRow, "id" | "custom_domain">,
): Promise<boolean> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${custom_domain}, 16))`.execute(tx);
  const found = await tx
    .selectFrom("projects")
    .select("id")
    .where("custom_domain", "=", custom_domain)
    .where("domain_status", "=", "verified")
    .where("id", "!=", id)
    .executeTakeFirst();
  return found !== undefined;
}

export async function writeState(tx: Db, id: string, state: DomainState, now: Date): Promise<void> {
  await tx
    .updateTable("projects")
    .set({
      domain_status: state.status,
      domain_misses: state.misses,
      domain_error: state.error,
      domain_checked_at: now,
    })
    .where("id", "=", id)
    .execute();
}

/**
 * Lists domains that are due for a check, longest ago first. Pending domains are due sooner than verified and failed
 * ones.
 */
export function listDue(
  db: Db,
  since: { settled: Date; unsettled: Date },
  limit: number,
): Promise<DomainRow[]> {
  return withDomain(db)
    .where((row) =>
      row.or([
        row("domain_checked_at", "is", null),
        row("domain_checked_at", "<=", since.settled),
        row.and([
          row("domain_checked_at", "<=", since.unsettled),
          row.or([
            row("domain_status", "=", "pending"),
            row.and([row("domain_status", "=", "verified"), row("domain_misses", ">", 0)]),
          ]),
        ]),
      ]),
    )
    .orderBy(sql`domain_checked_at nulls first`)
    .limit(limit)
    .execute();
}

/** Lists each verified name with the first label of its generated host. */
export function listVerified(db: Db): Promise<{ custom_domain: string; host_label: string }[]> {
  return db
    .selectFrom("projects")
    .innerJoin("environments", "environments.project_id", "projects.id")
    .select(["projects.custom_domain", "environments.host_label"])
    .where("projects.domain_status", "=", "verified")
    .where("projects.deleted_at", "is", null)
    .where("environments.kind", "=", "production")
    .where("environments.deleted_at", "is", null)
    .$narrowType<{ custom_domain: string }>()
    .execute();
}
