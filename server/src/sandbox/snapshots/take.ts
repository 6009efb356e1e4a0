/**
 * Takes a snapshot of a sandbox in its current state. A running sandbox stops only while it is captured; a paused one
 * stays paused.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { tierLimits } from "#accounts/plans.ts";
import type { App } from "#app.ts";
import type { Transaction } from "#schema.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import {
  type Bytes,
  capture,
  drop,
  envOf,
  findModel,
  findSnapshot,
  insertNamedSnapshot,
  newBytes,
  refuseUnlessRestorable,
  shareBytes,
} from "#machines/snapshots/clones.ts";
import { ownEnv } from "../sandboxes/lifecycle/environment.ts";
import { sandboxNotFound, sandboxTerminated, volumeAttached } from "../sandboxes/errors.ts";
import { waitForMove } from "../sandboxes/lifecycle/moves.ts";
import { explain, getSandbox } from "../sandboxes/sandboxes.ts";
import { namedSnapshotCapReached, snapshotNameTaken } from "./errors.ts";
import type { SnapshotCreate } from "./schema.ts";
import { getSnapshot, keptUntil } from "./snapshots.ts";
import { findByName, insertNamed, lockAndCountNamed, type NamedRow } from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "clock" | "log">;

/** Takes a snapshot, which is on disk on return. */
export async function takeSnapshot(
  app: Needs,
  actor: Actor,
  sandboxId: string,
  input: SnapshotCreate,
): Promise<NamedRow> {
  const { workspace_id } = await getSandbox(app, actor, sandboxId);
  // This check runs before the capture as well as after it, because a refused call should not stop the sandbox.
  await app.db.transaction().execute((tx) => refuseUnlessFree(tx, actor, workspace_id, input));
  const id = newBytes();
  try {
    const { bytes, env } = await write(app, actor, sandboxId, id);
    await passKillPoint("snapshot.written");
    await app.db.transaction().execute(async (tx) => {
      await refuseUnlessFree(tx, actor, workspace_id, input);
      const at = app.clock.now();
      const source = await getSandbox({ db: tx }, actor, sandboxId);
      const { template, template_id, substituted, process_defaults, start_command_id } = source;
      const { size, cpu, memory_mb, region } = source;
      await insertNamedSnapshot(app, tx, bytes, { id, env, storedAt: at });
      await insertNamed(tx, {
        id,
        workspace_id,
        name: input.name ?? null,
        sandbox_id: sandboxId,
        template,
        template_id,
        substituted,
        process_defaults: process_defaults && JSON.stringify(process_defaults),
        start_command_id,
        size,
        cpu,
        memory_mb,
        region,
        created_at: at,
        expires_at: keptUntil(tierOf(actor, workspace_id), at),
      });
      const target = { kind: "snapshot", id, label: input.name ?? id };
      await recordActivity(tx, actor, "snapshot.created", target, workspace_id, { sandbox_id: sandboxId });
    });
    await passKillPoint("snapshot.committed");
  } catch (error) {
    drop(app, id);
    throw error;
  }
  return getSnapshot(app, actor, id);
}

async function refuseUnlessFree(
  tx: Transaction,
  actor: Actor,
  workspaceId: string,
  { name }: SnapshotCreate,
): Promise<void> {
  const tier = tierOf(actor, workspaceId);
  const { snapshots: cap } = tierLimits[tier];
  if ((await lockAndCountNamed(tx, workspaceId)) >= cap) throw namedSnapshotCapReached(cap, tier);
  if (name !== undefined && (await findByName(tx, name, workspaceId))) throw snapshotNameTaken(name);
}

const tierOf = (actor: Actor, workspaceId: string) =>
  actor.workspaces.find(({ id }) => id === workspaceId)?.sandboxTier ?? "free";

async function write(
  app: Needs,
  actor: Actor,
  sandboxId: string,
  id: string,
): Promise<{ bytes: Bytes; env: Record<string, string> }> {
  for (;;) {
    const row = await waitForMove(app, sandboxId);
    if (!row) throw sandboxNotFound();
    if (row.status === "terminated") throw sandboxTerminated(row.termination_reason);
    if (row.volume_id !== null) throw volumeAttached();
    if (row.status === "running") {
      const model = await findModel(app, sandboxId);
      if (!model) continue;
      const bytes = await capture(app, model, id, { isDurable: true }).catch(async (error: unknown) => {
        throw await explain(app, actor, sandboxId, error);
      });
      return { bytes, env: ownEnv(envOf(app, model)) };
    }
    const model = await findSnapshot(app.db, { ownerKind: "sandbox", ownerId: sandboxId });
    if (!model) continue;
    await refuseUnlessRestorable(app, model);
    // If the bytes are missing, the sandbox was resumed or deleted meanwhile, so the loop reads it again.
    if (await shareBytes(app, model, id)) return { bytes: model, env: ownEnv(envOf(app, model)) };
  }
}
