/**
 * Volumes as machines see them: bytes on this host that one machine has at a time. Whose they are, what they are called
 * and who gets them next is for the sandboxes to say.
 */
import type { App } from "#app.ts";
import { translated } from "./errors.ts";
import type { HostVolume } from "./host/host.ts";
import { machinesWithVolume } from "./store.ts";

type Needs = Pick<App, "db" | "machines">;
type Place = Pick<HostVolume, "id" | "region">;

/** When this returns no machine has the volume any more: those that were on their way out are gone. */
export async function settleVolume(app: Needs, id: string): Promise<void> {
  const holders = await machinesWithVolume(app.db, app.machines.host.id, id);
  const leaving = holders.filter((row) => row.desired === "removed");
  await Promise.all(leaving.map((row) => app.machines.destroy(row)));
}

/** To another region; it stays where it is as well. Fails with `no_capacity`, and with `volume_missing`. */
export async function copyVolume(
  app: Needs,
  { id, region }: Place,
  to: string,
  signal: AbortSignal,
): Promise<{ bytes: number; sha256: string }> {
  await settleVolume(app, id);
  return translated(() => app.machines.host.copyVolume({ id, region }, to, signal));
}

/** All of its bytes in every region but one, halves of copies included. */
export async function dropVolume(app: Needs, id: string, options: { except?: string } = {}): Promise<void> {
  await settleVolume(app, id);
  for (const place of await app.machines.host.listVolumes()) {
    const isOurs = place.id === id || place.id === `${id}.unfinished`;
    if (isOurs && place.region !== options.except) await app.machines.host.dropVolume(place);
  }
}

export type { HostVolume } from "./host/host.ts";
