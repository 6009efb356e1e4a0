/** Changes a project's environments in the transaction that changes the project. */
import type { Db } from "#schema.ts";
import { hostLabelOf } from "./create.ts";
import { changeRow, isAnyDeployed, listAll, listRows, markDeleted } from "./store.ts";

/** True if the project has a live, queued or running deployment. */
export async function isDeployed(tx: Db, projectId: string): Promise<boolean> {
  return isAnyDeployed(tx, await idsOf(tx, projectId));
}

/** Changes the hosts of all environments to the project's new slug. Throws `host_too_long`. */
export async function changeHosts(tx: Db, projectId: string, slug: string, now: Date): Promise<void> {
  for (const row of await listRows(tx, projectId)) {
    await changeRow(tx, row.id, { host_label: hostLabelOf(slug, row), updated_at: now });
  }
}

/** Sets the branch of the production environment, which is the project's branch. */
export async function setProductionBranch(
  tx: Db,
  projectId: string,
  branch: string,
  now: Date,
): Promise<void> {
  for (const { id, kind } of await listRows(tx, projectId)) {
    if (kind === "production") await changeRow(tx, id, { branch, updated_at: now });
  }
}

export async function markAllDeleted(tx: Db, projectId: string, now: Date): Promise<void> {
  const living = await listRows(tx, projectId);
  await markDeleted(
    tx,
    living.map(({ id }) => id),
    now,
  );
}

/** Returns the ids of the project's environments, including deleted ones whose rows still exist. */
export async function idsOf(db: Db, projectId: string): Promise<string[]> {
  return (await listAll(db, projectId)).map(({ id }) => id);
}
