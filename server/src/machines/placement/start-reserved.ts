/**
 * Starts a reserved machine after the transaction of its reservation committed: thaws a warm machine, or starts a cold
 * one. The call is direct and not a job, because a queue's write and wake-up would cost more than the claim itself.
 */
import type { App } from "#app.ts";
import { isVolumeMissing, startFailed, translate } from "../errors.ts";
import { placeCold, type Reservation } from "./placement.ts";
import { orderFor } from "./order.ts";
import { markRemoved } from "../store.ts";
import { waitForVolumeRelease } from "../volumes.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "log">;

/**
 * Starts the reserved machine, which runs on return. If a warm machine fails, a cold one replaces it once. A machine
 * that fails finally is removed, and the error goes to the caller, which records it.
 */
export async function startReserved(app: Needs, reservation: Reservation): Promise<void> {
  for (const row of reservation.evicted) app.machines.destroyLater(row);
  const { volume, privateNetwork, shape } = reservation.request;
  // A request with a volume or a private network cannot use a warm machine.
  if (!volume && !privateNetwork && shape.poolKey !== "") app.machines.pool.countRequest(shape);
  try {
    await carryOut(app, reservation);
  } catch (error) {
    app.machines.destroyLater(reservation.row);
    if (isVolumeMissing(error)) throw translate(error);
    if (!reservation.warm) throw startFailed(error);
    app.log.warn({ machine: reservation.row.id, err: error }, "a warm machine failed; starting a cold one");
    await startReserved(app, await replace(app, reservation));
  }
}

async function carryOut(app: Needs, { row, request, warm }: Reservation): Promise<void> {
  const { network, hostname, env, volume, privateNetwork } = request;
  const { diskBytes, ...adjustable } = request.shape.resources;
  const claimed = { image: row.image_id, resources: adjustable, network, hostname, env };
  if (warm) await app.machines.host.claim(orderFor(row), claimed);
  else {
    const resources = { ...adjustable, diskBytes };
    if (volume) await waitForVolumeRelease(app, volume.id);
    const isBuild = row.owner_kind === "build";
    const { image_id: image, isolation } = row;
    const machine = { image, isolation, resources, network, hostname, env, isBuild };
    await app.machines.host.start(orderFor(row), {
      ...machine,
      ...(volume ? { volume } : {}),
      ...(privateNetwork ? { privateNetwork } : {}),
    });
  }
  app.machines.sampler.watch(row.id);
}

function replace(app: Needs, failed: Reservation): Promise<Reservation> {
  return app.db.transaction().execute(async (tx) => {
    await markRemoved(tx, failed.row.id);
    return placeCold(app, tx, failed.request);
  });
}
