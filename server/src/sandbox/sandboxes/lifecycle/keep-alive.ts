import type { Actor } from "#accounts/actor.ts";
import { tierLimits } from "#accounts/plans.ts";
import type { App } from "#app.ts";
import { timeoutTooLong } from "../errors.ts";
import { getSandbox, refuseUnlessRunning } from "../sandboxes.ts";
import { extendRow, extendRows, type SandboxRow } from "../store.ts";

/** Restarts the lifetime of a sandbox from now; the remaining time is not added. */
export async function keepAlive(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  id: string,
  timeoutSeconds: number,
): Promise<SandboxRow> {
  const row = await getSandbox(app, actor, id);
  refuseUnlessRunning(row);
  const tier = actor.workspaces.find((workspace) => workspace.id === row.workspace_id)?.sandboxTier ?? "free";
  const { maxTimeoutSeconds } = tierLimits[tier];
  if (timeoutSeconds > maxTimeoutSeconds) throw timeoutTooLong(maxTimeoutSeconds, tier);
  const expiresAt = new Date(app.clock.now().getTime() + timeoutSeconds * 1000);
  const extended = await extendRow(app.db, id, timeoutSeconds, expiresAt);
  if (extended) return { ...extended, machine_id: row.machine_id, sandbox_tier: row.sandbox_tier };
  // The sandbox ended between the read and the update, so the error is that of a new read.
  const now = await getSandbox(app, actor, id);
  refuseUnlessRunning(now);
  return now;
}

/**
 * Restarts the lifetimes of running sandboxes for the owner of their records; each keeps its last requested length.
 */
export function keepAllAlive(app: Pick<App, "db" | "clock">, ids: readonly string[]): Promise<void> {
  return extendRows(app.db, ids, app.clock.now());
}
