/** At the server's start, when nothing is under way: what an earlier one had begun with volumes is brought to its end. */
import type { App } from "#app.ts";
import { queueMove } from "./move.ts";
import { type VolumeRow, volumesOfHost } from "./store.ts";
import { destroy } from "./volumes.ts";

type Needs = Pick<App, "db" | "machines" | "log">;

export async function repairVolumes(app: Needs): Promise<void> {
  const { host } = app.machines;
  const rows = new Map((await volumesOfHost(app.db, host.id)).map((row) => [row.id, row]));
  for (const row of rows.values()) {
    await orLater(app, row, async () => {
      if (row.deleted_at !== null) await destroy(app, row);
      else if (row.moving_to !== null) await queueMove(app, app.db, row);
    });
  }
  // Others have volumes too.
  for (const place of (await host.listVolumes()).filter(({ id }) => id.startsWith("vol_"))) {
    const row = rows.get(place.id.replace(/\.unfinished$/, ""));
    if (!row) {
      // Somebody's files: a database that was put back knows less than the disk. A person decides.
      app.log.error({ volume: place.id, region: place.region }, "the bytes of a volume nobody knows");
      continue;
    }
    if (place.id === row.id && place.region === row.region) continue;
    app.log.info({ volume: place.id, region: place.region }, "half of a volume's move; deleting it");
    await orLater(app, row, () => host.dropVolume(place));
  }
}

/** One volume's trouble keeps neither the others nor the server from their start. */
async function orLater(app: Needs, { id }: VolumeRow, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    app.log.error({ volume: id, err: error }, "a volume could not be repaired; the next start tries again");
  }
}
