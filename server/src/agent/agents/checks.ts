/**
 * What a config names must be there and fit: its credentials, its schema. Asked when a version is published and, since
 * the world moves on, again when it is run.
 */
import type { ReachableWorkspace } from "#accounts/actor.ts";
import type { Db } from "#db/db.ts";
import { findCredentials } from "../credentials/credentials.ts";
import { invalidField } from "../errors.ts";
import { whyNotSchema } from "../json-schema.ts";
import type { AgentConfig } from "./config.ts";

/** Parts of a config that nothing here carries out yet: one that asks for them would run as something else. */
const notCarriedOut = ["vm", "platform", "memory"] as const;

export async function requireUsable(
  db: Db,
  workspace: ReachableWorkspace,
  config: AgentConfig,
): Promise<void> {
  for (const part of notCarriedOut) {
    if (config[part] !== undefined)
      throw invalidField(["config", part], "this server does not carry this out yet; leave it out");
  }
  if (config.toolsets.length > 0)
    throw invalidField(["config", "toolsets", 0, "toolset_id"], "no such toolset");
  await requireCredentials(db, workspace, config);
  if (config.output.type === "json_schema") {
    const why = whyNotSchema(config.output.schema);
    if (why !== undefined) throw invalidField(["config", "output", "schema"], why);
  }
}

async function requireCredentials(
  db: Db,
  workspace: ReachableWorkspace,
  { model }: AgentConfig,
): Promise<void> {
  const fallbacks = model.fallbacks ?? [];
  const known = await findCredentials(db, workspace.id, [
    model.credential_id,
    ...fallbacks.map(({ credential_id }) => credential_id),
  ]);
  const credential = known.get(model.credential_id);
  if (!credential)
    throw invalidField(["config", "model", "credential_id"], "no such model credential; add it first");
  if (credential.provider !== model.provider) {
    throw invalidField(
      ["config", "model", "provider"],
      `the credential is for ${credential.provider}; name that, or another credential`,
    );
  }
  for (const [index, { credential_id }] of fallbacks.entries()) {
    if (!known.has(credential_id)) {
      throw invalidField(
        ["config", "model", "fallbacks", index, "credential_id"],
        "no such model credential; add it first",
      );
    }
  }
}
