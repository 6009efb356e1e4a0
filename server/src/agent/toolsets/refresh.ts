/** A server's tools are read anew. Where it can't be read the record says so, and what was read before stays. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { toolsetNotFound, toolsetNotRefreshable } from "./errors.ts";
import { readTools } from "./tools/read-tools.ts";
import { type Toolset, toToolset } from "./schema.ts";
import { getToolset, requireWritable, target } from "./toolsets.ts";

export async function refresh(app: App, actor: Actor, id: string): Promise<Toolset> {
  const row = await getToolset(app.db, actor, id);
  requireWritable(actor, row);
  if (row.kind === "http") throw toolsetNotRefreshable();
  const read = await readTools(app, row);
  if (!read) throw toolsetNotFound();
  await recordActivity(app.db, actor, "agent_toolset.refreshed", target(read), read.workspace_id);
  return toToolset(read);
}
