import { sql } from "kysely";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import { workspaceIds, workspaceName, type WorkspaceParam } from "../workspaces.ts";

export interface ActivityQuery {
  skip: number;
  limit: number;
  workspace?: WorkspaceParam;
  /** `user`: people and their own tokens; else a worker's uuid. */
  actor?: string | undefined;
}

/** Entries of the workspaces the caller reaches, newest first. */
export async function listActivity({ db }: Pick<App, "db">, actor: Actor, query: ActivityQuery) {
  const ids = workspaceIds(actor, query.workspace);
  let entries = db
    .selectFrom("activity")
    .where("workspace_id", "=", sql<string>`any(${sql.val(ids)}::uuid[])`);
  if (query.actor === "user") entries = entries.where("actor_kind", "in", ["user", "api_token"]);
  else if (query.actor !== undefined) {
    entries = entries.where("actor_kind", "=", "worker").where("actor_id", "=", query.actor.toLowerCase());
  }
  const [rows, counted] = await Promise.all([
    entries
      .selectAll()
      .orderBy("at", "desc")
      .orderBy("id", "desc")
      .offset(query.skip)
      .limit(query.limit)
      .execute(),
    entries.select(({ fn }) => fn.countAll<number>().as("total")).executeTakeFirstOrThrow(),
  ]);
  const items = rows.map((row) => ({
    id: row.id,
    at: row.at.toISOString(),
    actor: { kind: row.actor_kind, id: row.actor_id, label: row.actor_label, role: row.actor_role },
    action: row.action,
    target: { kind: row.target_kind, id: row.target_id, label: row.target_label },
    workspace: row.workspace_id === null ? null : workspaceName(actor, row.workspace_id),
    ip: row.ip,
    detail: row.detail,
  }));
  return { items, total: counted.total, skip: query.skip, limit: query.limit };
}
