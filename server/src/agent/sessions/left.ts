/**
 * Sessions that schedules and webhooks began, and that nobody may ever come back to. Each is there for an hour after it
 * was last asked something, like a run's output, and goes sooner where the account needs its place.
 */
import type { App } from "#app.ts";
import { type Db, transaction } from "#db/db.ts";
import { activeRuns } from "../runs/active.ts";
import { close } from "./close.ts";
import { findTriggered, lockCounts, lockSession, type SessionRow } from "./store.ts";

const keptMs = 3_600_000;
const atOnce = 100;
/** As many as a plan has at most. */
const inWorkspaceMax = 1000;

/** False where none can go. The caller holds the workspace's counts. */
export async function makeRoom(tx: Db, workspaceId: string, now: Date): Promise<boolean> {
  const all = await findTriggered(tx, { workspaceId }, inWorkspaceMax);
  const busy = await activeRuns(
    tx,
    all.map(({ id }) => id),
  );
  const oldest = all.find(({ id }) => !busy.has(id));
  if (oldest) await close(tx, oldest.id, now);
  return oldest !== undefined;
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
  if ((await activeRuns(tx, [row.id])).size === 0) await close(tx, row.id, now);
}
