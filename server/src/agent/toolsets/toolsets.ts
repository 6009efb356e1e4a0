/**
 * Toolsets give agents tools. Tools of kind http are requests as data: a path, a schema, a body. Tools of kind mcp
 * come from an MCP server. This folder owns toolsets and their secrets. The folder promises:
 * - A secret goes only to the origin that it was given for.
 * - A model's arguments fill the placeholders of a request, and cannot change its target.
 * - A toolset cannot reach private addresses through this server.
 */
import type { Actor } from "#accounts/actor.ts";
import { requireNotSuspended, workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { toolsetNotFound } from "./errors.ts";
import { type Toolset, toToolset } from "./schema.ts";
import { findToolset, listToolsets, lockToolset, type ToolsetRow } from "./store.ts";

export async function list(app: Pick<App, "db">, actor: Actor): Promise<{ items: Toolset[] }> {
  return { items: (await listToolsets(app.db, workspaceIds(actor))).map(toToolset) };
}

export async function getToolset(db: Db, actor: Actor, id: string): Promise<ToolsetRow> {
  const row = await findToolset(db, id, workspaceIds(actor));
  if (!row) throw toolsetNotFound();
  return row;
}

/** Locks the toolset until the transaction ends. */
export async function lockReachable(tx: Db, actor: Actor, id: string): Promise<ToolsetRow> {
  const row = await lockToolset(tx, id, workspaceIds(actor));
  if (!row) throw toolsetNotFound();
  return row;
}

export function requireWritable(actor: Actor, row: ToolsetRow): void {
  const workspace = actor.workspaces.find((one) => one.id === row.workspace_id);
  if (workspace) requireNotSuspended(workspace);
}

export function target({ id, name }: ToolsetRow): { kind: string; id: string; label: string } {
  return { kind: "agent_toolset", id, label: name };
}
