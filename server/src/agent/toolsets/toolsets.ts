/**
 * Toolsets: what agents can do beyond talking. Those of kind http are requests as data: a path, a schema, a body; those
 * of kind mcp are the tools of a server. This folder owns them and their secrets, and promises that a secret goes to
 * the origin it was given for and nowhere else; that what a model says fills the places it is meant for and moves no
 * request; and that nobody makes this server call what only this server can reach.
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

/** Nobody else's to change until this transaction ends. */
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
