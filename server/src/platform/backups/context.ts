/** Dependencies of this folder's jobs. */
import type { App } from "#app.ts";
import type { Blobs } from "#lib/blobs/blobs.ts";
import type { Addons } from "../addons/addons.ts";
import type { BackupEngine } from "./engines/engine.ts";

export type BackupEngines = Readonly<Record<"postgres" | "redis", BackupEngine>>;

export interface BackupsContext {
  readonly app: Pick<App, "config" | "db" | "secrets" | "clock" | "log">;
  readonly addons: Addons;
  readonly blobs: Blobs;
  readonly engines: BackupEngines;
  /**
   * Makes the safety backup before a restore in place. If another call already makes that backup, waits for its end.
   */
  makeSafetyBackup(id: string, signal: AbortSignal): Promise<void>;
}
