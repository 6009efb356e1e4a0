/**
 * A throwaway instance: an empty database like an add-on's, with its files on the machine's root disk and without a
 * network. The caller may run any program in its machine. The owner id matches no row, so after a crash the next start
 * of the server removes the machine.
 */
import { newId } from "#lib/ids.ts";
import { startReserved } from "#machines/placement/start-reserved.ts";
import type { Guest } from "#machines/host/guest.ts";
import { placeCold, release } from "#machines/placement/placement.ts";
import { withReclaim } from "#machines/placement/reclaim.ts";
import type { AddonsContext } from "../context.ts";
import type { Instance } from "../engines/engine.ts";
import { requestOf } from "./machine.ts";
import { newPassword } from "../access/password.ts";
import { startProcess, waitUntilResponsive } from "../engines/database-process.ts";
import { extentOf } from "../sizes.ts";
import type { AddonRow } from "../store.ts";

/** Prefix of the owner ids of throwaway instances, which have no add-on row. */
export const throwawayPrefix = "try_";

export interface Throwaway extends AsyncDisposable {
  guest: Guest;
}

export async function startThrowaway(
  addons: AddonsContext,
  addon: AddonRow,
  signal: AbortSignal,
): Promise<Throwaway> {
  const { app } = addons;
  const engine = addons.engines[addon.kind];
  const extent = extentOf(addon.size);
  const owner = { ownerKind: "addon" as const, ownerId: newId(throwawayPrefix) };
  const image = await addons.image(engine, signal);
  const request = requestOf({ ownerId: owner.ownerId, image, hostname: addon.name, extent });
  const undo = new AsyncDisposableStack();
  try {
    undo.defer(async () => {
      const machine = await app.db.transaction().execute((tx) => release(tx, owner));
      if (machine) await app.machines.destroy(machine);
    });
    const reservation = await withReclaim(app, () =>
      app.db.transaction().execute((tx) => placeCold(app, tx, request)),
    );
    await startReserved(app, reservation);
    signal.throwIfAborted();
    const guest = app.machines.connect(reservation.row.id);
    const { username, database, options } = addon;
    const instance: Instance = {
      extent,
      username,
      database,
      options,
      password: newPassword(),
      isMade: false,
      isThrowaway: true,
    };
    const { command } = await startProcess(guest, engine, instance);
    await waitUntilResponsive(guest, engine, instance, command, signal);
    await engine.ensureAccess(guest, instance);
    return { guest, [Symbol.asyncDispose]: () => undo.disposeAsync() };
  } catch (error) {
    await undo.disposeAsync();
    throw error;
  }
}
