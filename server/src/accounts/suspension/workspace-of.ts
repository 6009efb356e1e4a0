/** Finds the workspace that owns the object in a request's path. */
import { sql } from "kysely";
import type { Db } from "#schema.ts";
import type { Actor } from "../actor.ts";

export interface PathTarget {
  /** Path template with `{name}` parameters, as in the OpenAPI documents. */
  path: string;
  params: Readonly<Record<string, string | undefined>>;
}

type Lookup = (db: Db, id: string, actor: Actor) => Promise<string | undefined>;

interface Owner {
  workspace_id: string;
}

const uuid = /^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$/i;

const rowOf =
  (table: string) =>
  async (db: Db, id: string): Promise<string | undefined> => {
    const found = await sql<Owner>`select workspace_id from ${sql.table(table)} where id = ${id}`.execute(db);
    return found.rows[0]?.workspace_id;
  };

/** A malformed UUID has no owner; validation of the path reports it later. */
const uuidRowOf =
  (table: string): Lookup =>
  async (db, id) =>
    uuid.test(id) ? rowOf(table)(db, id) : undefined;

const deployment: Lookup = async (db, id) => {
  if (!uuid.test(id)) return undefined;
  const found = await sql<Owner>`
    select p.workspace_id
    from deployments d
    join environments e on e.id = d.environment_id
    join projects p on p.id = e.project_id
    where d.id = ${id}`.execute(db);
  return found.rows[0]?.workspace_id;
};

/** An agent is referenced by its id, or by a name in the home workspace. */
const agent: Lookup = async (db, reference, { workspaces: [home] }) => {
  if (reference.startsWith("agt_")) return rowOf("agents")(db, reference);
  if (home === undefined) return undefined;
  const found = await sql<Owner>`
    select workspace_id from agents where name = ${reference} and workspace_id = ${home.id}`.execute(db);
  return found.rows[0]?.workspace_id;
};

/** An invitation belongs to the invited person until it is accepted. */
const invitation: Lookup = async (_db, _id, { workspaces }) =>
  workspaces.find(({ kind }) => kind === "personal")?.id;

/** Parameters whose name determines the look-up. */
const byParameter: Readonly<Record<string, Lookup>> = {
  agent,
  deployment_id: deployment,
  function_id: uuidRowOf("functions"),
  group_id: uuidRowOf("project_groups"),
  invitation_id: invitation,
  project_id: uuidRowOf("projects"),
  run_id: rowOf("agent_runs"),
  team_id: async (_db, id) => id.toLowerCase(),
  toolset_id: rowOf("agent_toolsets"),
};

/** Paths whose first parameter is named `{id}`. */
const byPath: Readonly<Record<string, Lookup>> = {
  "/v1/model-credentials/": rowOf("model_credentials"),
  "/v1/sandboxes/": rowOf("sandboxes"),
  "/v1/sandboxes/snapshots/": rowOf("sandbox_snapshots"),
  "/v1/sandboxes/volumes/": rowOf("sandbox_volumes"),
  "/v1/sandboxes/webhooks/": rowOf("sandbox_webhooks"),
  "/v1/templates/": rowOf("templates"),
};

/**
 * Returns the id of the workspace that owns the object in the path. Undefined if the path has no parameter, or the
 * object does not exist. Only the first parameter counts.
 */
export async function workspaceOf(
  db: Db,
  actor: Actor,
  { path, params }: PathTarget,
): Promise<string | undefined> {
  const [prefix = "", name = ""] = path.split(/[{}]/, 2);
  const lookup = byParameter[name] ?? byPath[prefix];
  const value = params[name];
  return lookup && value !== undefined ? lookup(db, value, actor) : undefined;
}
