import type { Actor } from "#accounts/actor.ts";
import { tierLimits } from "#accounts/plans.ts";
import type { App } from "#app.ts";
import { timeoutTooLong } from "../errors.ts";
import { getSandbox, refuseUnlessRunning } from "../sandboxes.ts";
import { extendRow, extendRows, type SandboxRow } from "../store.ts";

/** Restarts the clock from now; what was left of it is not added. */
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
  // It ended between the look and the change: say so as a look would now.
  const now = await getSandbox(app, actor, id);
  refuseUnlessRunning(now);
  return now;
}

/** Restarts the clocks of those that run, for who keeps them: each runs as long again as was asked for last. */
export function keepAllAlive(app: Pick<App, "db" | "clock">, ids: readonly string[]): Promise<void> {
  return extendRows(app.db, ids, app.clock.now());
}
