import type { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { openCursor, sealCursor } from "../cursor.ts";
import { reachable } from "./sandboxes.ts";
import { type SandboxList, toMoment, toSandbox } from "./schema.ts";
import type { Status } from "./states.ts";
import { listSandboxes } from "./store.ts";

type Needs = Pick<App, "config" | "db" | "secrets" | "machines">;

export interface ListQuery {
  status?: readonly Status[] | undefined;
  metadata?: Record<string, string> | undefined;
  template?: string | undefined;
  created_after?: string | undefined;
  created_before?: string | undefined;
  order?: "newest" | "oldest" | undefined;
  cursor?: string | undefined;
  limit: number;
}

export async function list(
  app: Needs,
  actor: Actor,
  query: ListQuery,
): Promise<z.output<typeof SandboxList>> {
  const { order = "newest", cursor } = query;
  // A cursor of one order is invalid for the other.
  const place = order === "newest" ? "sandboxes" : "sandboxes:oldest";
  const rows = await listSandboxes(app.db, {
    workspaceIds: reachable(actor),
    statuses: query.status,
    metadata: query.metadata,
    template: query.template,
    createdAfter: toMoment(query.created_after),
    createdBefore: toMoment(query.created_before),
    order,
    from: cursor === undefined ? undefined : openCursor<Position>(app, actor, place, cursor),
    limit: query.limit + 1,
  });
  const page = rows.slice(0, query.limit);
  const last = page.at(-1);
  const more = rows.length > query.limit && last;
  return {
    items: page.map((row) => toSandbox(app, row)),
    next_cursor: more
      ? sealCursor(app, actor, place, { createdAt: last.created_at_text, id: last.id })
      : null,
  };
}

interface Position {
  createdAt: string;
  id: string;
}
