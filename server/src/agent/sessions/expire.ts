/**
 * Sessions that end by themselves: ephemeral ones with their run, others once they are unused for `idle_minutes`, and
 * the longest idle one sooner where the account needs its place.
 */
import type { App } from "#app.ts";
import { type Db, transaction } from "#db/db.ts";
import { close } from "./close.ts";
import {
  countLive,
  findEphemeral,
  findEvictable,
  findExpired,
  lockCounts,
  lockSession,
  lockSessions,
  type SessionRow,
} from "./store.ts";

const expiredAtOnce = 100;

/**
 * Ends idle sessions until the plan allows one more; false where too few of them are idle, and then none ends. The
 * caller holds the workspace's counts.
 */
export async function evictIdle(tx: Db, workspaceId: string, allowed: number, now: Date): Promise<boolean> {
  // More than one where the plan was a larger one.
  const places = (await countLive(tx, workspaceId)) + 1 - allowed;
  if (places <= 0) return true;
  const oldest = await findEvictable(tx, workspaceId, places);
  if (oldest.length < places) return false;
  // In the order in which an erasure locks them; one that it took away meanwhile made room as well.
  const ids = oldest.map(({ id }) => id);
  await lockSessions(tx, ids);
  for (const id of ids) await close(tx, id, now);
  return (await countLive(tx, workspaceId)) < allowed;
}

type Needs = Pick<App, "db" | "log">;

export async function endExpired(app: Needs, now: Date): Promise<void> {
  await endAll(app, await findExpired(app.db, now, expiredAtOnce), now);
}

export async function endEphemeral(app: Needs, now: Date): Promise<void> {
  await endAll(app, await findEphemeral(app.db, expiredAtOnce), now);
}

async function endAll({ db, log }: Needs, sessions: readonly SessionRow[], now: Date): Promise<void> {
  for (const session of sessions) {
    await transaction(db, (tx) => endOne(tx, session, now)).catch((error: unknown) =>
      log.warn({ error, session: session.id }, "an expired session was not ended"),
    );
  }
}

/** A caller may have come back meanwhile. */
async function endOne(tx: Db, session: SessionRow, now: Date): Promise<void> {
  await lockCounts(tx, session.workspace_id);
  const row = await lockSession(tx, session.agent_id, session.id);
  if (!row || row.ended_at || row.last_used_at.getTime() !== session.last_used_at.getTime()) return;
  await close(tx, row.id, now);
}
