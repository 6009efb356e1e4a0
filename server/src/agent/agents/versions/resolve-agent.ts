/** All that an invoke asks of an agent, read at once. */
import type { Actor } from "#accounts/actor.ts";
import { referableIds } from "#accounts/workspaces.ts";
import type { Db } from "#schema.ts";
import { agentNotFound } from "#agent/errors.ts";
import { parseVersion } from "../names.ts";
import { type AskedAgent, findAsked } from "../store.ts";

export type { AskedAgent } from "../store.ts";

/** Its `version` is null where there is none that `wanted` (`3`, `v3`, an alias or `latest`) names. */
export async function askedAgent(
  db: Db,
  actor: Actor,
  reference: string,
  wanted: string,
): Promise<AskedAgent> {
  const row = await findAsked(db, reference, referableIds(actor, reference, "agt_"), parseVersion(wanted));
  if (!row) throw agentNotFound();
  return row;
}
