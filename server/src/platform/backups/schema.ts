/** Wire schemas of backups. */
import { z } from "zod";
import { AddonName, AddonParams } from "../addons/schema.ts";
import type { Download as DownloadView } from "./download.ts";
import type { BackupInfoView } from "./manage.ts";
import type { BackupRow, RestoreRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const BackupParams = z.strictObject({
  ...AddonParams.shape,
  backup_id: z.guid().describe("Id (UUID) of the backup."),
});

export function idsOf({ project_id, addon_id, backup_id }: z.output<typeof BackupParams>) {
  return { projectId: project_id, addonId: addon_id, backupId: backup_id };
}

export const Backup = z
  .object({
    id: z.guid().describe("Id (UUID) of the backup."),
    addon_id: z.guid().describe("Id (UUID) of the add-on that is backed up."),
    kind: z
      .enum(["manual", "auto", "safety"])
      .describe("`manual`: by request. `auto`: daily. `safety`: data of the add-on before a restore."),
    status: z
      .enum(["pending", "running", "completed", "failed"])
      .describe(
        "Status of the backup. `completed`: a test restore succeeded, and its data matched the add-on's.",
      ),
    size_bytes: z.int().nullable().describe("Size of the backup in bytes. Null until `completed`."),
    sha256: z
      .string()
      .nullable()
      .describe("SHA-256 of the backup's bytes, hexadecimal. Null until `completed`."),
    verified_at: timestamp.nullable().describe("Time at which the test restore succeeded. Null until then."),
    expires_at: timestamp.nullable().describe("Time at which the server deletes the backup."),
    created_at: timestamp.describe(
      "Time at which the backup was requested; for a daily one, the time at which it was queued.",
    ),
    error: z.string().nullable().describe("Reason of the failure. Null unless `failed`."),
  })
  .meta({ id: "Backup" });

/** The only conversion from a row to JSON. */
export function toBackup(row: BackupRow): z.output<typeof Backup> {
  return {
    id: row.id,
    addon_id: row.addon_id,
    kind: row.kind,
    status: row.status,
    size_bytes: row.size_bytes,
    sha256: row.sha256,
    verified_at: row.verified_at?.toISOString() ?? null,
    expires_at: row.expires_at?.toISOString() ?? null,
    created_at: row.created_at.toISOString(),
    error: row.error,
  };
}

export const BackupInfo = z
  .object({
    retention_days: z.int().describe("Days until a new backup is deleted; set by the plan."),
    daily_quota: z.int().describe("Maximum number of manual backups per day (UTC); set by the plan."),
    used_today: z
      .int()
      .describe("Manual backups since midnight UTC. Deleted ones count, failed ones do not."),
    next_run_at: timestamp
      .nullable()
      .describe("Time of the next daily backup. Null while `auto_backup` is false."),
    auto_backup: z.boolean().describe("True if the server makes a backup every day."),
  })
  .meta({ id: "BackupInfo" });

export function toBackupInfo(view: BackupInfoView): z.output<typeof BackupInfo> {
  return {
    retention_days: view.retentionDays,
    daily_quota: view.dailyQuota,
    used_today: view.usedToday,
    next_run_at: view.addon.next_backup_at?.toISOString() ?? null,
    auto_backup: view.addon.auto_backup,
  };
}

export const BackupDownload = z
  .object({
    url: z.string().describe("Download URL. Needs no token, and works for one hour."),
    expires_at: timestamp.describe("Time at which `url` stops working: one hour after this response."),
    size_bytes: z.int().describe("Size of the download in bytes."),
    sha256: z.string().describe("SHA-256 of the download, hexadecimal."),
  })
  .meta({ id: "BackupDownload" });

export function toDownload(view: DownloadView): z.output<typeof BackupDownload> {
  return {
    url: view.url,
    expires_at: view.expiresAt.toISOString(),
    size_bytes: view.sizeBytes,
    sha256: view.sha256,
  };
}

export const RestoreRequest = z
  .strictObject({
    name: AddonName.optional().describe(
      "Name of a new add-on in the same project to restore into. Default: replace the current add-on's data.",
    ),
  })
  .default({})
  .meta({ id: "RestoreRequest" });

export const Restore = z
  .object({
    id: z.guid().describe("Id (UUID) of the restore."),
    backup_id: z.guid().describe("Id (UUID) of the backup that is restored."),
    addon_id: z.guid().describe("Id (UUID) of the add-on that is restored into."),
    status: z
      .enum(["running", "completed", "failed"])
      .describe(
        "Status of the restore. `failed`: the add-on keeps its previous data; if that could not be confirmed, `error` reports it.",
      ),
    safety_backup_id: z
      .guid()
      .nullable()
      .describe(
        "Id (UUID) of the backup with the add-on's previous data. Null for a restore into a new add-on.",
      ),
    error: z.string().nullable().describe("Reason of the failure. Null unless `failed`."),
    created_at: timestamp.describe("Time of the request."),
    finished_at: timestamp.nullable().describe("Time at which the restore ended. Null while it runs."),
  })
  .meta({ id: "Restore" });

export function toRestore(row: RestoreRow): z.output<typeof Restore> {
  return {
    id: row.id,
    backup_id: row.backup_id,
    addon_id: row.addon_id,
    status: row.status,
    safety_backup_id: row.safety_backup_id,
    error: row.error,
    created_at: row.created_at.toISOString(),
    finished_at: row.finished_at?.toISOString() ?? null,
  };
}
