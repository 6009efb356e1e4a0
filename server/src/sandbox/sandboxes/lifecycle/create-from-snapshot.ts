/** Creates a sandbox from a named snapshot, in the snapshot's workspace; the snapshot does not change. */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { DomainError } from "#lib/errors.ts";
import {
  envOf,
  findSnapshot,
  newBytes,
  refuseUnlessRestorable,
  markSnapshotDamaged,
  shareBytes,
} from "#machines/snapshots/clones.ts";
import { snapshotDamaged } from "#machines/errors.ts";
import { snapshotNotFound } from "#sandbox/snapshots/errors.ts";
import { findSnapshotNamed, snapshotUsed } from "#sandbox/snapshots/snapshots.ts";
import { makeClones } from "./clone.ts";
import { ownEnv } from "./environment.ts";
import { invalidField } from "../errors.ts";
import { defaultTimeoutSeconds } from "../limits/plan-limits.ts";
import type { SandboxCreate } from "../schema.ts";
import type { SandboxRow } from "../store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "config" | "clock" | "log">;

export async function createFromSnapshot(
  app: Needs,
  actor: Actor,
  input: SandboxCreate & { snapshot: string },
): Promise<SandboxRow> {
  const snapshot = await findSnapshotNamed(app, actor, input.snapshot);
  const workspace = actor.workspaces.find(({ id }) => id === snapshot?.workspace_id);
  if (!snapshot || !workspace) throw snapshotNotFound();
  for (const field of ["size", "region"] as const) {
    const own = snapshot[field];
    if (input[field] !== undefined && input[field] !== own) {
      throw invalidField(field, `the snapshot's is "${own}".`);
    }
  }
  if (input.volume !== undefined) throw invalidField("volume", "a snapshot is restored without one.");
  const model = await findSnapshot(app.db, { ownerKind: "named", ownerId: snapshot.id });
  if (!model) throw snapshotNotFound();
  await refuseUnlessRestorable(app, model);
  const bytes = newBytes();
  try {
    if (!(await shareBytes(app, model, bytes))) throw snapshotDamaged();
    const { template, template_id, substituted, process_defaults, start_command_id } = snapshot;
    const { size, cpu, memory_mb, region } = snapshot;
    const [row] = await makeClones(app, actor, {
      workspace,
      count: 1,
      like: {
        template,
        template_id,
        substituted,
        process_defaults,
        start_command_id,
        size,
        cpu,
        memory_mb,
        region,
        network: input.network,
        allow_domains: input.network === "restricted" ? (input.allow_domains ?? null) : null,
        volume_id: null,
        on_timeout: input.on_timeout,
        auto_resume: input.auto_resume,
        timeout_seconds: input.timeout_seconds ?? defaultTimeoutSeconds,
        metadata: input.metadata,
        snapshot_id: snapshot.id,
      },
      hasPreviewToken: input.preview_auth,
      env: { ...ownEnv(envOf(app, model)), ...input.env },
      model,
      bytes,
    });
    if (!row) throw new Error("one clone was asked for");
    await snapshotUsed(app, snapshot.id, workspace.sandboxTier);
    return row;
  } catch (error) {
    // A damaged snapshot stays damaged, so no later attempt is made.
    if (error instanceof DomainError && error.code === "snapshot_damaged")
      await markSnapshotDamaged(app, snapshot.id);
    throw error;
  }
}
