/** Completes unfinished operations on volumes of an earlier server, at start. */
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
  // Volumes of add-ons are skipped here.
  for (const place of (await host.listVolumes()).filter(({ id }) => id.startsWith("vol_"))) {
    const row = rows.get(place.id.replace(/\.unfinished$/, ""));
    if (!row) {
      // The bytes may be files of a user: a restored database may lack newer rows. An operator has to decide.
      app.log.error(
        { volume: place.id, region: place.region },
        "found the bytes of a volume without a row; the operator has to decide",
      );
      continue;
    }
    if (place.id === row.id && place.region === row.region) continue;
    app.log.info({ volume: place.id, region: place.region }, "deleting an incomplete copy of a volume");
    await orLater(app, row, () => host.dropVolume(place));
  }
}

/** A failure of one volume stops neither the other repairs nor the server's start. */
async function orLater(app: Needs, { id }: VolumeRow, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    app.log.error({ volume: id, err: error }, "a volume could not be repaired; the next start tries again");
  }
}
