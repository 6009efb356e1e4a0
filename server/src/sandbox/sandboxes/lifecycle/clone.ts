/**
 * Sandboxes that start as copies of another sandbox: with its memory, processes and files, and with their own id, name,
 * address, lifetime and record. A call creates all of its clones or none. First the clones are reserved: no reader sees
 * a reservation, but every limit counts it. Then the clones are restored in parallel, and one transaction makes all of
 * them sandboxes. A failure or crash before that transaction leaves nothing.
 */
import type { Actor, ReachableWorkspace } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { planLimit } from "#accounts/errors.ts";
import { nextTier } from "#accounts/plans.ts";
import type { App } from "#app.ts";
import type { Transaction } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import {
  startClones,
  drop,
  type Model,
  type Place,
  placeClone,
  releaseClones,
  assignClones,
} from "#machines/snapshots/clones.ts";
import { withReclaim } from "#machines/placement/reclaim.ts";
import { byWhom, recordEvent } from "#sandbox/events/events.ts";
import { hostnameOf, sandboxEnv } from "./environment.ts";
import { refuseByPlan } from "../limits/plan-limits.ts";
import { newPreviewToken } from "../schema.ts";
import { maxConcurrent, type Size } from "../limits/sizes.ts";
import {
  activateReserved,
  deleteReserved,
  findTier,
  insertSandbox,
  lockAndCountLive,
  type NewSandbox,
  type SandboxRow,
} from "../store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "config" | "clock" | "log">;

export interface Clones {
  workspace: ReachableWorkspace;
  count: number;
  /** Columns that all clones share. */
  like: Omit<NewSandbox, "id" | "workspace_id" | "preview_token_sealed" | "expires_at" | "created_at">;
  hasPreviewToken: boolean;
  /** Environment from the caller. */
  env: Record<string, string>;
  model: Model;
  /** Snapshot bytes to restore from; the call deletes them at its end. */
  bytes: string;
  /** Writes the bytes, if they do not exist yet. */
  write?: () => Promise<unknown>;
}

/** Creates the clones, which run on return. */
export async function makeClones(app: Needs, actor: Actor, clones: Clones): Promise<SandboxRow[]> {
  try {
    const { workspace, like } = clones;
    refuseByPlan(workspace, { ...like, size: like.size as Size });
    const places = await withReclaim(app, () =>
      app.db.transaction().execute((tx) => reserve(app, tx, clones)),
    );
    const machines = places.map(({ row }) => row.id);
    return await app.machines.whileProtected(machines, () => carryOut(app, actor, clones, places));
  } finally {
    drop(app, clones.bytes);
  }
}

async function reserve(app: Needs, tx: Transaction, clones: Clones): Promise<Place[]> {
  const { workspace, like } = clones;
  const live = await lockAndCountLive(tx, workspace.id);
  const allowed = maxConcurrent(app.config, workspace.sandboxTier);
  if (live + clones.count > allowed) {
    throw planLimit("max_concurrent_sandboxes", allowed, nextTier(workspace.sandboxTier), workspace.id);
  }
  const now = app.clock.now();
  const places: Place[] = [];
  for (let made = 0; made < clones.count; made += 1) {
    const id = newId("sbx_");
    await insertSandbox(tx, {
      ...like,
      id,
      workspace_id: workspace.id,
      preview_token_sealed: clones.hasPreviewToken ? newPreviewToken(app, id) : null,
      expires_at: now,
      created_at: now,
      reserved: true,
    });
    places.push(
      await placeClone(app, tx, clones.model, clones.bytes, {
        ownerId: id,
        network: like.network,
        hostname: hostnameOf(id),
        env: sandboxEnv(id, like.network, clones.env),
      }),
    );
  }
  return places;
}

async function carryOut(
  app: Needs,
  actor: Actor,
  clones: Clones,
  places: readonly Place[],
): Promise<SandboxRow[]> {
  try {
    await passKillPoint("clone.reserved");
    await clones.write?.();
    await passKillPoint("clone.written");
    await startClones(app, places);
    await passKillPoint("clone.restored");
    const rows = await app.db.transaction().execute((tx) => bear(app, tx, actor, places));
    await passKillPoint("clone.committed");
    for (const { row } of places) app.machines.sampler.watch(row.id);
    return rows;
  } catch (error) {
    const owners = places.map(({ row }) => row.owner_id ?? "");
    await app.db.transaction().execute(async (tx) => {
      await deleteReserved(tx, owners);
      await releaseClones(tx, places);
    });
    for (const { row, evicted } of places)
      for (const gone of [row, ...evicted]) app.machines.destroyLater(gone);
    throw error;
  }
}

async function bear(
  app: Needs,
  tx: Transaction,
  actor: Actor,
  places: readonly Place[],
): Promise<SandboxRow[]> {
  await assignClones(tx, places);
  const at = app.clock.now();
  const rows: SandboxRow[] = [];
  for (const { row: machine } of places) {
    const row = await activateReserved(tx, machine.owner_id ?? "", at);
    if (!row) throw new Error("a clone that has a machine has its reservation");
    rows.push({ ...row, machine_id: machine.id, sandbox_tier: await findTier(tx, row.workspace_id) });
    const { id, template, size, network, region, workspace_id } = row;
    const origin =
      row.forked_from === null ? { snapshot_id: row.snapshot_id } : { forked_from: row.forked_from };
    await recordActivity(
      tx,
      actor,
      "sandbox.created",
      { kind: "sandbox", id, label: template },
      workspace_id,
      origin,
    );
    await recordEvent(tx, {
      workspaceId: workspace_id,
      event: "sandbox.created",
      sandboxId: id,
      at,
      outcome: "ok",
      summary: row.forked_from === null ? "Created from a snapshot." : `Forked from ${row.forked_from}.`,
      detail: { ...byWhom(actor), template, size, network, region, ...origin },
      actor,
    });
  }
  return rows;
}
