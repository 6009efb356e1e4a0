/**
 * A move is a pause or a resume in progress. Other calls wait for its end instead of being refused. A row may record a
 * move that is no longer in progress, because its end could not be written or the server died. Such a row would block
 * all callers. A periodic pass ends a move of the first kind, the next start ends a move of the second kind.
 */
import type { Selectable } from "kysely";
import type { App } from "#app.ts";
import { moveTimedOut } from "../errors.ts";
import { endMoves, findById } from "../store.ts";
import type { SandboxesTable } from "../tables.ts";

/** Maximum wait for a move, above the deadlines of a checkpoint and a restore of gigabytes. */
const waitMs = 180_000;

/** Waits for the end of a move and returns the row; undefined if there is no such sandbox. */
export async function waitForMove(
  app: Pick<App, "db">,
  id: string,
): Promise<Selectable<SandboxesTable> | undefined> {
  const until = Date.now() + waitMs;
  for (let pauseMs = 10; Date.now() < until; pauseMs = Math.min(pauseMs * 1.5, 200)) {
    const row = await findById(app.db, id);
    if (!row || row.transition === null) return row;
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
  throw moveTimedOut();
}

/** Number of moves in flight in this server, by sandbox. */
const moving = new Map<string, number>();

export async function underWay<T>(id: string, work: () => Promise<T>): Promise<T> {
  moving.set(id, (moving.get(id) ?? 0) + 1);
  try {
    return await work();
  } finally {
    const left = (moving.get(id) ?? 1) - 1;
    if (left === 0) moving.delete(id);
    else moving.set(id, left);
  }
}

export function endStaleMoves(app: Pick<App, "db">): Promise<void> {
  return endMoves(app.db, { except: [...moving.keys()] });
}
