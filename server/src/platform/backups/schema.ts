/** The wire of backups. */
import { z } from "zod";
import { AddonName } from "../addons/schema.ts";
import type { Download as DownloadView } from "./download.ts";
import type { BackupInfoView } from "./manage.ts";
import type { BackupRow, RestoreRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const BackupParams = z.strictObject({
  project_id: z.guid(),
  addon_id: z.guid(),
  backup_id: z.guid(),
});

export function idsOf({ project_id, addon_id, backup_id }: z.output<typeof BackupParams>) {
  return { projectId: project_id, addonId: addon_id, backupId: backup_id };
}

export const Backup = z
  .object({
    id: z.guid(),
    addon_id: z.guid(),
    kind: z.enum(["manual", "auto", "safety"]).describe("`safety`: what was there before a restore."),
    status: z
      .enum(["pending", "running", "completed", "failed"])
      .describe(
        "`completed`: it was restored in an instance that was thrown away, and was what the add-on held.",
      ),
    size_bytes: z.int().nullable(),
    sha256: z.string().nullable(),
    verified_at: timestamp.nullable(),
    expires_at: timestamp.nullable().describe("It is deleted then."),
    created_at: timestamp,
    error: z.string().nullable(),
  })
  .meta({ id: "Backup" });

/** The only way from a row to JSON. */
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
    retention_days: z.int(),
    daily_quota: z.int().describe("Backups made by hand in a day of UTC."),
    used_today: z.int(),
    next_run_at: timestamp.nullable(),
    auto_backup: z.boolean(),
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
    url: z.string().describe("Needs no token; good for an hour."),
    expires_at: timestamp,
    size_bytes: z.int(),
    sha256: z.string(),
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
      "Of a new add-on in the same project; in place of what the add-on holds where absent.",
    ),
  })
  .default({})
  .meta({ id: "RestoreRequest" });

export const Restore = z
  .object({
    id: z.guid(),
    backup_id: z.guid(),
    addon_id: z.guid().describe("What it is restored into."),
    status: z
      .enum(["running", "completed", "failed"])
      .describe("`failed`: the add-on holds what it held before."),
    safety_backup_id: z.guid().nullable().describe("What the add-on held before."),
    error: z.string().nullable(),
    created_at: timestamp,
    finished_at: timestamp.nullable(),
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
