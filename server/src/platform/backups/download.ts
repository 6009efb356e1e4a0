/**
 * Download URL of a completed backup. The URL belongs to the store, or to this server and then expires after an hour.
 * This server signs its URL for a single backup with HMAC-SHA256 and a key for this purpose. No record of the URL is
 * stored.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { baseUrl } from "#config.ts";
import type { AddonView } from "../addons/find.ts";
import type { BackupsContext } from "./context.ts";
import { backupNotCompleted, signatureInvalid, urlExpired } from "./errors.ts";
import { getBackup } from "./manage.ts";
import type { BackupRow } from "./store.ts";

export const downloadsPrefix = "/backups/";
const lifeSeconds = 60 * 60;
const purpose = "backup-urls";

export interface Download {
  url: string;
  expiresAt: Date;
  sizeBytes: number;
  sha256: string;
}

export async function download(
  { app, blobs, engines }: Pick<BackupsContext, "app" | "blobs" | "engines">,
  actor: Actor,
  ids: { projectId: string; addonId: string; backupId: string },
): Promise<Download> {
  const { addon, backup } = await getBackup({ app }, actor, ids);
  const { blob_key: key, size_bytes: sizeBytes, sha256 } = backup;
  if (backup.status !== "completed" || key === null || sizeBytes === null || sha256 === null)
    throw backupNotCompleted(backup.status);
  const expires = Math.ceil(app.clock.now().getTime() / 1000) + lifeSeconds;
  const filename = filenameOf(addon, backup, engines[addon.kind].extension);
  const url = await (blobs.presign?.(key, { expiresInSeconds: lifeSeconds, filename }) ??
    ownUrl(app, backup.id, expires));
  return { url, expiresAt: new Date(expires * 1000), sizeBytes, sha256 };
}

/** Returns the id of the backup that a URL names. Throws if the signature is invalid or the URL has expired. */
export function verify(app: Pick<App, "secrets" | "clock">, url: URL): string {
  const id = url.pathname.slice(downloadsPrefix.length);
  const expires = url.searchParams.get("svc_exp") ?? "";
  const signature = url.searchParams.get("svc_sig") ?? "";
  if (!/^[0-9a-f-]{36}$/.test(id) || !/^[1-9]\d{0,11}$/.test(expires)) throw signatureInvalid();
  if (!app.secrets.verify(purpose, ["GET", id, Number(expires)], signature)) throw signatureInvalid();
  if (app.clock.now().getTime() >= Number(expires) * 1000) throw urlExpired();
  return id;
}

/** Returns the file name, such as `orders-2030-01-01T06-00-00Z.dump`. */
export function filenameOf(
  { name }: Pick<AddonView, "name">,
  { created_at }: Pick<BackupRow, "created_at">,
  extension: string,
): string {
  return `${name}-${created_at.toISOString().slice(0, 19).replaceAll(":", "-")}Z.${extension}`;
}

function ownUrl(app: Pick<App, "config" | "secrets">, id: string, expires: number): string {
  const query = new URLSearchParams({
    svc_exp: String(expires),
    svc_sig: app.secrets.sign(purpose, ["GET", id, expires]),
  });
  const base = app.config.publicUrl ?? baseUrl(app.config);
  return `${base}${downloadsPrefix}${id}?${query.toString()}`;
}
