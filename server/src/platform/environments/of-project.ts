/** What a change of a project does to its environments, in the project's own transaction. */
import type { Db } from "#schema.ts";
import { hostLabelOf } from "./create.ts";
import { changeRow, isAnyDeployed, listAll, listRows, markDeleted } from "./store.ts";

/** Whether anything of the project is served, or on its way to be. */
export async function isDeployed(tx: Db, projectId: string): Promise<boolean> {
  return isAnyDeployed(tx, await idsOf(tx, projectId));
}

/** The project has another slug: their hosts follow. Throws `host_too_long`. */
export async function followName(tx: Db, projectId: string, slug: string, now: Date): Promise<void> {
  for (const row of await listRows(tx, projectId)) {
    await changeRow(tx, row.id, { host_label: hostLabelOf(slug, row), updated_at: now });
  }
}

/** The project's branch is its production environment's. */
export async function followProjectBranch(
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

/** Also those that are deleted and not gone yet. */
export async function idsOf(db: Db, projectId: string): Promise<string[]> {
  return (await listAll(db, projectId)).map(({ id }) => id);
}
