/**
 * Expiry of sessions. An ephemeral session ends with its run, any other session after `idle_minutes` without a run. If
 * the plan's limit is reached, the longest idle session is evicted earlier.
 */
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
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
 * Ends idle sessions until the plan allows one more session. Returns false, and ends no session, if too few are idle.
 * The caller holds the lock on the workspace's counts.
 */
export async function evictIdle(tx: Db, workspaceId: string, allowed: number, now: Date): Promise<boolean> {
  // After a change to a smaller plan, several sessions have to end.
  const places = (await countLive(tx, workspaceId)) + 1 - allowed;
  if (places <= 0) return true;
  const oldest = await findEvictable(tx, workspaceId, places);
  if (oldest.length < places) return false;
  // The locks are acquired in the order of an erasure. If an erasure deleted a session meanwhile, that session counts
  // as ended.
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
      log.warn({ error, session: session.id }, "ending an expired session failed"),
    );
  }
}

/** Ends an expired session. Does nothing if the session was used after it was selected. */
async function endOne(tx: Db, session: SessionRow, now: Date): Promise<void> {
  await lockCounts(tx, session.workspace_id);
  const row = await lockSession(tx, session.agent_id, session.id);
  if (!row || row.ended_at || row.last_used_at.getTime() !== session.last_used_at.getTime()) return;
  await close(tx, row.id, now);
}
