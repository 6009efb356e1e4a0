/**
 * Checks that all dependencies of a config exist and fit: toolsets, credentials, machine and schema. The check runs at
 * publication, and again when an alias is pointed at the version, because dependencies may be deleted meanwhile.
 */
import type { ReachableWorkspace } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { findCredentials } from "#agent/credentials/credentials.ts";
import { invalidField } from "#agent/errors.ts";
import { findSchemaFault } from "#agent/json-schema.ts";
import { findToolsets } from "#agent/toolsets/find.ts";
import { requireMachine } from "#agent/vm/checks.ts";
import type { AgentConfig } from "../config.ts";

/**
 * Throws unless the config's toolsets, credentials and machine exist. Locks the toolsets until the transaction ends.
 */
export async function requireUsable(
  app: Pick<App, "machines">,
  tx: Db,
  workspace: ReachableWorkspace,
  config: AgentConfig,
): Promise<void> {
  await requireToolsets(tx, workspace, config);
  await requireCredentials(tx, workspace, config);
  await requireMachine(app, tx, workspace, config);
}

/**
 * Checks the output schema before the transaction, because the check may be slow. The check counts against the
 * workspace's limit, as the checks of its runs do.
 */
export async function requireSchema(
  { id }: Pick<ReachableWorkspace, "id">,
  { output }: AgentConfig,
): Promise<void> {
  if (output.type !== "json_schema") return;
  const why = await findSchemaFault(id, output.schema);
  if (why !== undefined) throw invalidField(["config", "output", "schema"], why);
}

async function requireToolsets(
  db: Db,
  workspace: ReachableWorkspace,
  { toolsets }: AgentConfig,
): Promise<void> {
  const known = await findToolsets(
    db,
    workspace.id,
    toolsets.map(({ toolset_id }) => toolset_id),
  );
  for (const [index, { toolset_id, allow, tools }] of toolsets.entries()) {
    const names = known.get(toolset_id);
    if (names === undefined)
      throw invalidField(
        ["config", "toolsets", index, "toolset_id"],
        "does not exist; create the toolset first",
      );
    // The tools of an MCP server are unknown until the server's list is read for the first time.
    if (names === null) continue;
    for (const [place, name] of allow.entries()) {
      if (name !== "*" && !names.has(name))
        throw invalidField(["config", "toolsets", index, "allow", place], "is not a tool of the toolset");
    }
    for (const name of Object.keys(tools ?? {})) {
      if (!names.has(name))
        throw invalidField(["config", "toolsets", index, "tools", name], "is not a tool of the toolset");
    }
  }
}

async function requireCredentials(
  db: Db,
  workspace: ReachableWorkspace,
  { model }: AgentConfig,
): Promise<void> {
  const fallbacks = model.fallbacks ?? [];
  const wanted = model.credential_id;
  const known = await findCredentials(db, workspace.id, [
    ...(wanted === undefined ? [] : [wanted]),
    ...fallbacks.map(({ credential_id }) => credential_id),
  ]);
  requireCredential(model, wanted === undefined ? undefined : known.get(wanted)?.provider);
  for (const [index, { credential_id }] of fallbacks.entries()) {
    if (!known.has(credential_id)) {
      throw invalidField(
        ["config", "model", "fallbacks", index, "credential_id"],
        "is not an existing model credential; add it first",
      );
    }
  }
}

/** Throws unless the credential fits the model's provider. `found`: provider of the named credential. */
function requireCredential(
  { provider, credential_id: id }: AgentConfig["model"],
  found: string | undefined,
): void {
  const at = ["config", "model", "credential_id"];
  if (provider === "echo") {
    if (id !== undefined) throw invalidField(at, "must be absent, because echo has no credential");
    return;
  }
  if (id === undefined)
    throw invalidField(at, `is required for ${provider}; only the provider echo needs no credential`);
  if (found === undefined) throw invalidField(at, "is not an existing model credential; add it first");
  if (found !== provider) {
    throw invalidField(
      ["config", "model", "provider"],
      `must be ${found}, the provider of the credential; or use another credential`,
    );
  }
}
