/**
 * Expiry of sessions: ephemeral ones end with their run, others after `idle_minutes` without a run. The longest idle
 * session is evicted earlier when the plan is full.
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
 * Ends idle sessions until the plan allows one more. Returns false and ends none when too few are idle. The caller
 * holds the lock of the workspace's counts.
 */
export async function evictIdle(tx: Db, workspaceId: string, allowed: number, now: Date): Promise<boolean> {
  // After a change to a smaller plan, more than one session has to end.
  const places = (await countLive(tx, workspaceId)) + 1 - allowed;
  if (places <= 0) return true;
  const oldest = await findEvictable(tx, workspaceId, places);
  if (oldest.length < places) return false;
  // Locks in the order of an erasure. A session that it deleted meanwhile has made room too.
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

/** Does nothing when a caller has used the session meanwhile. */
async function endOne(tx: Db, session: SessionRow, now: Date): Promise<void> {
  await lockCounts(tx, session.workspace_id);
  const row = await lockSession(tx, session.agent_id, session.id);
  if (!row || row.ended_at || row.last_used_at.getTime() !== session.last_used_at.getTime()) return;
  await close(tx, row.id, now);
}
