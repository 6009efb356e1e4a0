/**
 * Reads a server's tools again. After a failure, the status contains the cause, and the tools of the last read stay.
 */
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
