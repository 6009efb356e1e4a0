/**
 * Toolsets: what agents can do beyond talking. Here they are HTTP requests as data: a path, a schema, a body. This
 * folder owns them and their secrets, and promises that a secret goes to the origin it was given for and nowhere else;
 * that what a model says fills the places it is meant for and moves no request; and that nobody makes this server call
 * what only this server can reach.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { homeWorkspace, requireNotSuspended, workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { parseOpenedHosts } from "#lib/addresses.ts";
import { AddressError, checkAddress } from "#lib/checked-lookup.ts";
import { newId } from "#lib/ids.ts";
import { servedBy } from "../agents/served.ts";
import { invalidField } from "../errors.ts";
import { whyNotSchema } from "../json-schema.ts";
import { toolsetInUse, toolsetLimitReached, toolsetNameTaken, toolsetNotFound } from "./errors.ts";
import { type HttpTool, type Toolset, type ToolsetCreate, type ToolsetUpdate, toToolset } from "./schema.ts";
import {
  changeToolset,
  deleteToolset,
  insertToolset,
  listToolsets,
  lockAndCount,
  lockToolset,
  type ToolsetRow,
} from "./store.ts";

type Needs = Pick<App, "db" | "secrets" | "config" | "clock">;

const toolsetsMax = 100;

export async function list(app: Needs, actor: Actor): Promise<{ items: Toolset[] }> {
  return { items: (await listToolsets(app.db, workspaceIds(actor))).map(toToolset) };
}

export async function create(app: Needs, actor: Actor, input: ToolsetCreate): Promise<Toolset> {
  const workspace = requireNotSuspended(homeWorkspace(actor));
  await requireAddress(app, input.url);
  await requireTools(input.http_tools);
  const id = newId("tst_");
  const row = await app.db.transaction().execute(async (tx) => {
    if ((await lockAndCount(tx, workspace.id)) >= toolsetsMax) throw toolsetLimitReached(toolsetsMax);
    const made = await insertToolset(tx, {
      id,
      workspace_id: workspace.id,
      name: input.name,
      kind: input.kind,
      url: input.url.replace(/\/+$/, ""),
      auth_header_name: input.auth_header_name ?? null,
      ...secretOf(app, id, input.auth_secret ?? ""),
      http_tools: JSON.stringify(input.http_tools),
      tool_overrides: JSON.stringify(input.tool_overrides ?? {}),
      created_at: app.clock.now(),
    });
    if (!made) throw toolsetNameTaken(input.name);
    await recordActivity(tx, actor, "agent_toolset.created", target(made), workspace.id);
    return made;
  });
  return toToolset(row);
}

export async function update(app: Needs, actor: Actor, id: string, input: ToolsetUpdate): Promise<Toolset> {
  if (input.url !== undefined) await requireAddress(app, input.url);
  if (input.http_tools !== undefined) await requireTools(input.http_tools);
  return app.db.transaction().execute(async (tx) => {
    const row = await lockToolset(tx, id, workspaceIds(actor));
    if (!row) throw toolsetNotFound();
    const workspace = actor.workspaces.find((one) => one.id === row.workspace_id);
    if (workspace) requireNotSuspended(workspace);
    const moves = input.url !== undefined && new URL(input.url).origin !== new URL(row.url).origin;
    const secret = input.auth_secret ?? (moves ? "" : undefined);
    const changed = await changeToolset(tx, id, {
      ...(input.url === undefined ? {} : { url: input.url.replace(/\/+$/, "") }),
      ...(input.auth_header_name === undefined ? {} : { auth_header_name: input.auth_header_name }),
      ...(secret === undefined ? {} : secretOf(app, id, secret)),
      ...(input.http_tools === undefined ? {} : { http_tools: JSON.stringify(input.http_tools) }),
      ...(input.tool_overrides === undefined ? {} : { tool_overrides: JSON.stringify(input.tool_overrides) }),
    });
    await recordActivity(tx, actor, "agent_toolset.updated", target(row), row.workspace_id, {
      fields: Object.keys(input),
    });
    return toToolset(changed);
  });
}

export async function remove(app: Needs, actor: Actor, id: string): Promise<void> {
  await app.db.transaction().execute(async (tx) => {
    const row = await lockToolset(tx, id, workspaceIds(actor));
    if (!row) throw toolsetNotFound();
    const users = await servedBy(tx, row.workspace_id, (config) =>
      config.toolsets.some(({ toolset_id }) => toolset_id === id),
    );
    if (users.length > 0) throw toolsetInUse(users);
    await deleteToolset(tx, id);
    await recordActivity(tx, actor, "agent_toolset.deleted", target(row), row.workspace_id);
  });
}

export function openSecret(app: Pick<App, "secrets">, row: ToolsetRow): string | undefined {
  return row.auth_secret_sealed
    ? app.secrets.open(row.auth_secret_sealed, place(row.id)).toString("utf8")
    : undefined;
}

async function requireAddress(app: Needs, url: string): Promise<void> {
  await checkAddress(new URL(url), parseOpenedHosts(app.config.allowPrivateHosts)).catch((error: unknown) => {
    throw error instanceof AddressError ? invalidField(["url"], error.message) : error;
  });
}

/** Names are said once, schemas can be used, and each place in a path is an argument that must be there. */
async function requireTools(tools: readonly HttpTool[]): Promise<void> {
  const names = new Set<string>();
  for (const [index, { name, parameters, path }] of tools.entries()) {
    if (names.has(name)) throw invalidField(["http_tools", index, "name"], "stands there twice");
    names.add(name);
    const why = parameters["type"] === "object" ? await whyNotSchema(parameters) : "must be of type object";
    if (why !== undefined) throw invalidField(["http_tools", index, "parameters"], why);
    const required = Array.isArray(parameters["required"]) ? (parameters["required"] as unknown[]) : [];
    for (const [, place = ""] of path.matchAll(/\{([^{}]*)\}/g)) {
      if (!required.includes(place))
        throw invalidField(["http_tools", index, "path"], `{${place}} must be a required argument`);
    }
  }
}

function secretOf(app: Needs, id: string, secret: string) {
  if (secret === "") return { auth_secret_sealed: null, secret_hint: null };
  const hint = secret.length < 16 ? "…" : `…${secret.slice(-4)}`;
  return { auth_secret_sealed: app.secrets.seal(secret, place(id)), secret_hint: hint };
}

function place(id: string): string {
  return `agent_toolsets:${id}:auth_secret`;
}

function target({ id, name }: ToolsetRow): { kind: string; id: string; label: string } {
  return { kind: "agent_toolset", id, label: name };
}
