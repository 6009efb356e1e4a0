/** Pages of this API's lists, newest item first. Each page has a start position and the next cursor. */
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { openCursor, sealCursor } from "#accounts/cursor.ts";
import type { App } from "#app.ts";
import { invalidField } from "./errors.ts";

type Needs = Pick<App, "secrets">;

/** Query parameters of every paged list. */
export const pageQuery = {
  cursor: z
    .string()
    .max(2048)
    .optional()
    .describe("`next_cursor` of the previous page; send it with the same filters."),
  limit: z.int().min(1).max(100).default(50).describe("Items per page, from 1 to 100. Default 50."),
};

/** Position in a list. `createdAt` is PostgreSQL's text of the time, with the microseconds that a Date drops. */
export interface Position {
  createdAt: string;
  id: string;
}

/**
 * Returns the position of a cursor. `list` identifies the list and its filters: a cursor of another list is refused.
 */
export function positionOf(
  app: Needs,
  actor: Actor,
  list: string,
  cursor: string | undefined,
): Position | undefined {
  if (cursor === undefined) return undefined;
  const position = openCursor<Position>(app, actor, list, cursor);
  if (position === undefined)
    throw invalidField(["cursor"], "is not a cursor of this list; use next_cursor of the previous page");
  return position;
}

/** Returns the rows of a page and the next cursor. If there is a next page, `rows` holds one row more than `limit`. */
export function pageOf<Row extends { id: string; created_at_text: string }>(
  app: Needs,
  actor: Actor,
  list: string,
  rows: readonly Row[],
  limit: number,
): { page: Row[]; next_cursor: string | null } {
  const page = rows.slice(0, limit);
  const last = page.at(-1);
  if (rows.length <= limit || last === undefined) return { page, next_cursor: null };
  const position: Position = { createdAt: last.created_at_text, id: last.id };
  return { page, next_cursor: sealCursor(app, actor, list, position) };
}
