/**
 * Sessions that schedules and webhooks began, and that nobody may ever come back to. Each is there for an hour after it
 * was last asked something, like a run's output, and goes sooner where the account needs its place.
 */
import type { App } from "#app.ts";
import { type Db, transaction } from "#db/db.ts";
import { close } from "./close.ts";
import { countLive, findTriggered, lockCounts, lockSession, lockSessions, type SessionRow } from "./store.ts";

const keptMs = 3_600_000;
const atOnce = 100;

/** Ends as many as there have to be fewer for one more, or none and answers false where they can't go. The caller holds the workspace's counts. */
export async function makeRoom(tx: Db, workspaceId: string, allowed: number, now: Date): Promise<boolean> {
  // More than one where the plan was a larger one.
  const places = (await countLive(tx, workspaceId)) + 1 - allowed;
  if (places <= 0) return true;
  const oldest = await findTriggered(tx, { workspaceId }, places);
  if (oldest.length < places) return false;
  // In the order in which an erasure locks them; one that it took away meanwhile made room as well.
  const ids = oldest.map(({ id }) => id);
  await lockSessions(tx, ids);
  for (const id of ids) await close(tx, id, now);
  return (await countLive(tx, workspaceId)) < allowed;
}

export async function endLeft({ db, log }: Pick<App, "db" | "log">, now: Date): Promise<void> {
  const unusedSince = new Date(now.getTime() - keptMs);
  for (const session of await findTriggered(db, { unusedSince }, atOnce)) {
    await transaction(db, (tx) => endOne(tx, session, unusedSince, now)).catch((error: unknown) =>
      log.warn({ error, session: session.id }, "a session that a trigger left was not ended"),
    );
  }
}

/** Nobody may have come back meanwhile. */
async function endOne(tx: Db, session: SessionRow, unusedSince: Date, now: Date): Promise<void> {
  await lockCounts(tx, session.workspace_id);
  const row = await lockSession(tx, session.agent_id, session.id);
  if (!row || row.ended_at || row.last_used_at >= unusedSince) return;
  await close(tx, row.id, now);
}
