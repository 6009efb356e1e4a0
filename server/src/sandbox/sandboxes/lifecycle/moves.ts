/**
 * A sandbox that is being paused or resumed: what comes meanwhile waits for the move to end instead of being refused. A
 * move that says in the row that it is under way, and is not, would hold everybody up: its end could not be written, or
 * the server ended. The first is found by a look now and then, the second at the next start.
 */
import type { Selectable } from "kysely";
import type { App } from "#app.ts";
import { moveTimedOut } from "../errors.ts";
import { endMoves, findById } from "../store.ts";
import type { SandboxesTable } from "../tables.ts";

/** Longer than the deadlines of a checkpoint and a restore of gigabytes. */
const waitMs = 180_000;

/** The row once nothing is under way; undefined where there is none. */
export async function whenStill(
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

/** How many moves of each sandbox this server has under way. */
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
