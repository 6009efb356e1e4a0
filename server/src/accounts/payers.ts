/**
 * The account that pays for a workspace. Fair shares are counted by payer: all workspaces of a person together get one
 * share.
 */
import type { Db } from "#schema.ts";

/**
 * Time for which a payer is cached. Teams seldom change their owner, and counting for the previous owner for another
 * minute is harmless.
 */
const keptMs = 60_000;
const mostKept = 10_000;

type Payers = Map<string, { payerId: string; untilMs: number }>;
const caches = new WeakMap<object, Payers>();

/** Returns the id of the account that pays for the workspace, or the workspace's own id if the workspace is deleted. */
export async function payerOf(db: Db, workspaceId: string): Promise<string> {
  let cache = caches.get(db);
  if (!cache) caches.set(db, (cache = new Map()));
  const kept = cache.get(workspaceId);
  if (kept && performance.now() < kept.untilMs) return kept.payerId;
  const row = await db
    .selectFrom("workspace_payers")
    .select("payer_id")
    .where("workspace_id", "=", workspaceId)
    .executeTakeFirst();
  const payerId = row?.payer_id ?? workspaceId;
  if (cache.size >= mostKept) cache.clear();
  cache.set(workspaceId, { payerId, untilMs: performance.now() + keptMs });
  return payerId;
}
