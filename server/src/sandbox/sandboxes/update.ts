/** Changes the hosts that a running or paused sandbox may reach. */
import { recordActivity } from "#accounts/activity/activity.ts";
import type { Actor } from "#accounts/actor.ts";
import { planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { sandboxTerminated } from "./errors.ts";
import { getSandbox, reachable } from "./sandboxes.ts";
import type { SandboxUpdate } from "./schema.ts";
import { type SandboxRow, setAllowDomains } from "./store.ts";

export async function updateSandbox(
  app: Pick<App, "db" | "machines">,
  actor: Actor,
  id: string,
  { allow_domains: domains }: SandboxUpdate,
): Promise<SandboxRow> {
  const row = await getSandbox(app, actor, id);
  if (row.status === "terminated") throw sandboxTerminated(row.termination_reason);
  if (domains === undefined || row.network !== "restricted") return row;
  if (domains !== null && row.sandbox_tier === "free") throw planLimit("allow_domains", false, "payg");
  await app.db.transaction().execute(async (tx) => {
    if (!(await setAllowDomains(tx, id, reachable(actor), domains))) return;
    const target = { kind: "sandbox", id, label: row.template };
    await recordActivity(tx, actor, "sandbox.updated", target, row.workspace_id, { allow_domains: domains });
  });
  const now = await getSandbox(app, actor, id);
  // A later resume reads the committed list for its new machine.
  if (now.machine_id !== null) await app.machines.egress?.reload(now.machine_id);
  if (now.status === "terminated") throw sandboxTerminated(now.termination_reason);
  return now;
}
