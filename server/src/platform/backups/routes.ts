import { z } from "zod";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { addonExists, addonNotFound, addonNotRunning } from "../addons/errors.ts";
import { Addon, AddonParams, toAddon } from "../addons/schema.ts";
import { projectNotFound } from "../projects/errors.ts";
import type { Backups } from "./backups.ts";
import { createBackup } from "./create.ts";
import { download } from "./download.ts";
import { backupInUse, backupNotCompleted, backupNotFound, backupRunning, restoreRunning } from "./errors.ts";
import {
  backupInfo,
  deleteBackup,
  getBackup,
  getRestore,
  listBackups,
  restoresInto,
  toggleAutoBackup,
} from "./manage.ts";
import { onAddon } from "../audit-targets.ts";
import { restoreBackup } from "./restore.ts";
import {
  Backup,
  BackupDownload,
  BackupInfo,
  BackupParams,
  idsOf,
  Restore,
  RestoreRequest,
  toBackup,
  toBackupInfo,
  toDownload,
  toRestore,
} from "./schema.ts";

const common = { api: "platform", tag: "Backups" } as const;
const ofAddon = "/api/v1/projects/{project_id}/addons/{addon_id}";
const path = `${ofAddon}/backups`;
const notFound = [projectNotFound, addonNotFound] as const;
const isBusy = [addonNotRunning, backupRunning, restoreRunning] as const;

export const backupRoutes = (backups: Backups): Route[] => [
  defineRoute({
    ...common,
    method: "PATCH",
    path: `${ofAddon}/auto-backup`,
    operationId: "toggleAutoBackup",
    summary: "Toggle daily backups",
    description:
      "Turns daily backups on if they are off, and off if they are on. Each add-on has its own time of day; `backup-info` has the time of the next backup. Turning them on requires plan pro or team.",
    scope: "platform:write",
    params: AddonParams,
    responses: { 200: Addon },
    errors: [...notFound, planLimit, accountSuspended],
    handler: async ({ actor, params }) =>
      toAddon(await toggleAutoBackup(backups, actor, params.project_id, params.addon_id)),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${ofAddon}/backup-info`,
    operationId: "getBackupInfo",
    summary: "Get backup limits and schedule",
    description: "Returns the plan's limits for backups, and the time of the next daily backup.",
    scope: "platform:read",
    params: AddonParams,
    responses: { 200: BackupInfo },
    errors: [...notFound],
    handler: async ({ actor, params }) =>
      toBackupInfo(await backupInfo(backups, actor, params.project_id, params.addon_id)),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path,
    operationId: "listBackups",
    summary: "List an add-on's backups",
    description: "Returns the newest first.",
    scope: "platform:read",
    params: AddonParams,
    responses: { 200: z.array(Backup) },
    errors: [...notFound],
    handler: async ({ actor, params }) =>
      (await listBackups(backups, actor, params.project_id, params.addon_id)).map(toBackup),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path,
    operationId: "createBackup",
    summary: "Create a backup",
    description:
      "The response has `status: pending`. The backup holds the data of one moment; the database accepts writes meanwhile. The status is `completed` once a test restore succeeded and its data matched.",
    scope: "platform:write",
    params: AddonParams,
    responses: { 201: Backup },
    errors: [...notFound, ...isBusy, planLimit, accountSuspended],
    idempotent: true,
    replay: {
      activity: "backup.created",
      render: async ({ actor, params, made: [{ backup_id }] }) => {
        const ids = idsOf({ ...params, backup_id: String(backup_id) });
        return toBackup((await getBackup(backups, actor, ids)).backup);
      },
    },
    handler: async ({ actor, params }) =>
      toBackup(await createBackup(backups, actor, params.project_id, params.addon_id)),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/{backup_id}/download`,
    operationId: "downloadBackup",
    needsSecrets: true,
    summary: "Get a backup's download URL",
    description:
      "A PostgreSQL backup is a file for `pg_restore`, a Redis backup an RDB file. The URL supports range requests.",
    scope: "platform:read",
    params: BackupParams,
    responses: { 200: BackupDownload },
    errors: [...notFound, backupNotFound, backupNotCompleted],
    audit: {
      ...onAddon,
      action: "backup_url.created",
      detail: ({ params }) => ({ backup_id: params.backup_id }),
    },
    handler: async ({ actor, params }) => toDownload(await download(backups, actor, idsOf(params))),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: `${path}/{backup_id}`,
    operationId: "deleteBackup",
    summary: "Delete a backup",
    description:
      "Irreversible. A backup in progress is stopped. A backup that is being restored cannot be deleted: 409 `backup_in_use`.",
    scope: "platform:write",
    params: BackupParams,
    responses: { 204: null },
    errors: [...notFound, backupNotFound, backupInUse],
    handler: ({ actor, params }) => deleteBackup(backups, actor, idsOf(params)),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/{backup_id}/restore`,
    operationId: "restoreBackup",
    summary: "Restore a backup",
    description:
      "Without `name`, backs up the add-on's current data, then replaces it. Connections end. If the restore fails, the add-on keeps its current data, and the backup of it stays. With `name`, creates a new add-on of the same size. `restores` of the target add-on has the status.",
    scope: "platform:write",
    params: BackupParams,
    body: RestoreRequest,
    responses: { 202: Restore },
    errors: [
      ...notFound,
      ...isBusy,
      backupNotFound,
      backupNotCompleted,
      addonExists,
      planLimit,
      accountSuspended,
    ],
    extension: true,
    idempotent: true,
    replay: {
      activity: "backup.restore_begun",
      render: async ({ actor, params, made: [{ id, restore_id }] }) =>
        toRestore(
          await getRestore(backups, actor, {
            projectId: params.project_id,
            addonId: String(id),
            restoreId: String(restore_id),
          }),
        ),
    },
    handler: async ({ actor, params, body }) =>
      toRestore(await restoreBackup(backups, actor, idsOf(params), body.name)),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${ofAddon}/restores`,
    operationId: "listRestores",
    summary: "List restores into an add-on",
    description: "Returns the newest first.",
    scope: "platform:read",
    params: AddonParams,
    responses: { 200: z.array(Restore) },
    errors: [...notFound],
    extension: true,
    handler: async ({ actor, params }) =>
      (await restoresInto(backups, actor, params.project_id, params.addon_id)).map(toRestore),
  }),
];
