/**
 * A function is a handler that serves requests at its own address, and costs nothing while idle. This folder owns the
 * record: name, code, variables and key, and builds code into versions. `instances` runs the versions.
 *
 * A name belongs to one function or one project of the installation. A key is returned once and stored as a hash. The
 * live version changes in one transaction, and only to a proved version. Deletion also removes instances, images and
 * metrics.
 */
import type { Actor } from "#accounts/actor.ts";
import { requireNotSuspended, workspaceIds, type WorkspaceParam } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { openVariables, type Variables } from "../environments/variables.ts";
import { functionNotFound } from "./errors.ts";
import type { FunctionParts } from "./parts.ts";
import { type FunctionRecord, type FunctionSummary, toFunction, toSummary } from "./schema.ts";
import * as store from "./store.ts";

export type { FunctionRow } from "./store.ts";
type FunctionRow = store.FunctionRow;

export type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

/** Returns functions with their workspace. Deleted functions are included. */
export const workspacesOfFunctions = store.findWorkspaces;

/** Returns a function in the actor's workspaces. */
export async function getFunction({ db }: Pick<App, "db">, actor: Actor, id: string): Promise<FunctionRow> {
  const row = await store.findOwn(db, id, workspaceIds(actor));
  if (!row) throw functionNotFound();
  return row;
}

/** Returns a function that the actor may change, and locks it until the transaction ends. */
export async function lockWritableFunction(tx: Db, actor: Actor, id: string) {
  const row = await store.lockOwn(tx, id, workspaceIds(actor));
  const workspace = row && actor.workspaces.find((reachable) => reachable.id === row.workspace_id);
  if (!workspace) throw functionNotFound();
  return { row, workspace: requireNotSuspended(workspace) };
}

export async function list(
  app: Needs,
  parts: FunctionParts,
  actor: Actor,
  { workspace, ...page }: { workspace?: WorkspaceParam; skip: number; limit: number },
): Promise<{ items: FunctionSummary[]; total: number; skip: number; limit: number }> {
  const { rows, total } = await store.listOwn(app.db, workspaceIds(actor, workspace), page);
  return { items: rows.map((row) => toSummary(app, parts, actor, row)), total, ...page };
}

export async function get(
  app: Needs,
  parts: FunctionParts,
  actor: Actor,
  id: string,
): Promise<FunctionRecord> {
  return toFunction(app, parts, actor, await getFunction(app, actor, id));
}

export async function readVariables(app: Needs, actor: Actor, id: string): Promise<Variables> {
  return openVariables(app, "functions", await getFunction(app, actor, id));
}

/** Returns the number of functions in a workspace. */
export function countFunctions(db: Db, workspaceId: string): Promise<number> {
  return store.countRows(db, workspaceId);
}

export function target({ id, name }: Pick<FunctionRow, "id" | "name">) {
  return { kind: "function", id, label: name };
}
