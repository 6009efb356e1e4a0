/** Runs as their owners see them. */
import type { Actor } from "#accounts/actor.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { getAgent } from "../agents/agents.ts";
import { called } from "../calls/calls.ts";
import { runNotFound } from "./errors.ts";
import { type Run, type RunQuery, toRun } from "./schema.ts";
import { findRun, listRuns, type RunView } from "./store.ts";

type Needs = Pick<App, "db" | "clock">;

export async function get(app: Needs, actor: Actor, id: string): Promise<Run> {
  const row = await getRun(app, actor, id);
  const calls = await called(app.db, [id]);
  return toRun(row, calls.get(id) ?? [], app.clock.now());
}

export async function list(app: Needs, actor: Actor, query: RunQuery): Promise<{ items: Run[] }> {
  const agentId = query.agent === undefined ? undefined : (await getAgent(app.db, actor, query.agent)).id;
  const rows = await listRuns(app.db, workspaceIds(actor), {
    limit: query.limit,
    ...(agentId === undefined ? {} : { agentId }),
    ...(query.session_id === undefined ? {} : { sessionId: query.session_id }),
    ...(query.status === undefined ? {} : { status: query.status }),
  });
  const now = app.clock.now();
  const calls = await called(
    app.db,
    rows.map(({ id }) => id),
  );
  return { items: rows.map((row) => toRun(row, calls.get(row.id) ?? [], now)) };
}

export async function getRun(app: Pick<App, "db">, actor: Actor, id: string): Promise<RunView> {
  const row = await findRun(app.db, id, workspaceIds(actor));
  if (!row) throw runNotFound();
  return row;
}
