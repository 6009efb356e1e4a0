/**
 * Volumes as machines see them: bytes on this host that at most one machine uses at a time. The sandbox API manages
 * their owners, names and order of use.
 */
import type { App } from "#app.ts";
import { withTranslatedErrors } from "./errors.ts";
import type { HostVolume } from "./host/host.ts";
import { machinesWithVolume } from "./store.ts";

type Needs = Pick<App, "db" | "machines">;
type Place = Pick<HostVolume, "id" | "region">;

/** Waits for the removal of machines that had the volume. On return no machine has it. */
export async function waitForVolumeRelease(app: Needs, id: string): Promise<void> {
  const holders = await machinesWithVolume(app.db, app.machines.host.id, id);
  const leaving = holders.filter((row) => row.desired === "removed");
  await Promise.all(leaving.map((row) => app.machines.destroy(row)));
}

/**
 * Copies a volume to another region and keeps the original. Fails with `no_capacity`, and with `volume_missing`.
 */
export async function copyVolume(
  app: Needs,
  { id, region }: Place,
  to: string,
  signal: AbortSignal,
): Promise<{ bytes: number; sha256: string }> {
  await waitForVolumeRelease(app, id);
  return withTranslatedErrors(() => app.machines.host.copyVolume({ id, region }, to, signal));
}

/** Deletes all bytes of a volume in every region but one, including incomplete copies. */
export async function deleteVolumeFiles(
  app: Needs,
  id: string,
  options: { except?: string } = {},
): Promise<void> {
  await waitForVolumeRelease(app, id);
  for (const place of await app.machines.host.listVolumes()) {
    const isOurs = place.id === id || place.id === `${id}.unfinished`;
    if (isOurs && place.region !== options.except) await app.machines.host.dropVolume(place);
  }
}

export type { HostVolume } from "./host/host.ts";
