/**
 * Creates an add-on. A transaction inserts the row, and the response follows at once. Machine, volume and process are
 * created afterwards. `Addons` works from the rows, so the next server completes a creation that a crash interrupted.
 */
import { randomUUID } from "node:crypto";
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { requireBelow } from "#accounts/plans.ts";
import type { Transaction } from "#schema.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { getEnvironment } from "../environments/environments.ts";
import { invalidField } from "../input/schema.ts";
import { lockWritableProject } from "../projects/projects.ts";
import type { Addons } from "./addons.ts";
import { engines } from "./engines/engines.ts";
import { addonExists } from "./errors.ts";
import { target } from "./find.ts";
import { newPassword, sealPassword } from "./access/password.ts";
import { takePublicPort } from "./access/public-ports.ts";
import type { AddonCreate } from "./schema.ts";
import { type AddonSize, largestSize, requireSize } from "./sizes.ts";
import { type AddonView, insertRow, listOf, lockAndCount, takeIndex } from "./store.ts";
import type { AddonProgress } from "./tables.ts";

const firstProgress: AddonProgress = { step: "image", percent: 0, message: "Waiting to start." };

export interface CreateOptions {
  /** Further work in the transaction that creates the add-on. */
  alongside?: (tx: Transaction, made: AddonView) => Promise<void>;
  /** True if the environment need not exist any more, because another add-on's value is copied. */
  isEnvironmentKnown?: boolean;
}

export async function createAddon(
  addons: Addons,
  actor: Actor,
  projectId: string,
  input: AddonCreate,
  { alongside, isEnvironmentKnown = false }: CreateOptions = {},
): Promise<AddonView> {
  const { app } = addons;
  const engine = engines[input.kind];
  if (input.version !== undefined && input.version !== engine.version) {
    throw invalidField("version", `must be ${engine.version} for ${input.kind}; or omit the field`);
  }
  const id = randomUUID();
  const made = await app.db.transaction().execute(async (tx) => {
    const { project, workspace } = await lockWritableProject(tx, actor, projectId);
    requireBelow(workspace.plan, "addons", await lockAndCount(tx, workspace.id), workspace.id);
    const size: AddonSize = input.size ?? largestSize(workspace.plan);
    requireSize(workspace.plan, size);
    if (input.environmentId !== null && !isEnvironmentKnown)
      await getEnvironment({ db: tx }, actor, project.id, input.environmentId);
    const names = new Set((await listOf(tx, project.id)).map(({ name }) => name));
    const name = input.name ?? freeName(input.kind, names);
    const now = app.clock.now();
    const row = await insertRow(tx, {
      id,
      project_id: project.id,
      environment_id: input.environmentId,
      kind: input.kind,
      version: engine.version,
      name,
      size,
      status: "provisioning",
      error: null,
      progress: JSON.stringify(firstProgress),
      private_index: await takeIndex(tx),
      username: engine.username,
      database: engine.database,
      password_sealed: sealPassword(app, id, newPassword()),
      public: input.isPublic,
      public_port: input.isPublic ? await takePublicPort(app, tx) : null,
      options: JSON.stringify(input.options),
      next_backup_at: null,
      created_at: now,
      updated_at: now,
      deleted_at: null,
    });
    if (!row) throw addonExists(name);
    await recordActivity(tx, actor, "addon.created", target(row), workspace.id, {
      project: project.name,
      kind: row.kind,
      size,
    });
    const { name: project_name, region, workspace_id } = project;
    const view = { ...row, project_name, region, workspace_id };
    await alongside?.(tx, view);
    return view;
  });
  await passKillPoint("addon.created");
  addons.supervise(made);
  return made;
}

/** Returns the first free name of `postgres`, `postgres-2`, … */
function freeName(kind: string, taken: ReadonlySet<string>): string {
  let name = kind;
  for (let n = 2; taken.has(name); n += 1) name = `${kind}-${n}`;
  return name;
}
