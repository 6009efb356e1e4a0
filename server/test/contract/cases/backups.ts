import type { World } from "../world.ts";
import type { Cases } from "./case.ts";
import { addon } from "./platform.ts";

const nobody = "99999999-9999-4999-8999-999999999999";
const noAddon = { project_id: nobody, addon_id: nobody };
const noBackup = { ...noAddon, backup_id: nobody };

/** Inserts only the row of a running add-on; no machine is started. */
async function runningAddon(world: World): Promise<{ project_id: string; addon_id: string }> {
  const made = await addon(world);
  await world.app.db
    .updateTable("addons")
    .set({ status: "running" })
    .where("id", "=", made.addon_id)
    .execute();
  return made;
}

/** Inserts a completed backup without bytes, which no test reads. */
async function backup(world: World): Promise<{ project_id: string; addon_id: string; backup_id: string }> {
  const made = await runningAddon(world);
  const now = new Date();
  const { id } = await world.app.db
    .insertInto("backups")
    .values({
      addon_id: made.addon_id,
      kind: "manual",
      status: "completed",
      blob_key: `backups/${made.addon_id}/made.dump`,
      version: "15",
      size_bytes: 5,
      sha256: "0".repeat(64),
      verified_at: now,
      finished_at: now,
      expires_at: new Date(now.getTime() + 86_400_000),
    })
    .returning("id")
    .executeTakeFirstOrThrow();
  return { ...made, backup_id: id };
}

async function makeRestore(world: World): Promise<{ project_id: string; addon_id: string }> {
  const { backup_id, ...made } = await backup(world);
  const values = {
    backup_id,
    addon_id: made.addon_id,
    status: "completed",
    finished_at: new Date(),
  } as const;
  await world.app.db.insertInto("restores").values(values).execute();
  return made;
}

export const backupCases: Cases = {
  toggleAutoBackup: { success: async (world) => ({ params: await addon(world) }), unknown: noAddon },
  getBackupInfo: { success: async (world) => ({ params: await addon(world) }), unknown: noAddon },
  listBackups: {
    success: async (world) => {
      const { backup_id: _, ...params } = await backup(world);
      return { params };
    },
    unknown: noAddon,
  },
  createBackup: { success: async (world) => ({ params: await runningAddon(world) }), unknown: noAddon },
  downloadBackup: { success: async (world) => ({ params: await backup(world) }), unknown: noBackup },
  deleteBackup: { success: async (world) => ({ params: await backup(world) }), unknown: noBackup },
  restoreBackup: {
    success: async (world) => ({ params: await backup(world), body: { name: "restored" } }),
    unknown: noBackup,
  },
  listRestores: { success: async (world) => ({ params: await makeRestore(world) }), unknown: noAddon },
};
