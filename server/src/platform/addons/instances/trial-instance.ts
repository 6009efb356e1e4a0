/**
 * An instance that lives for a moment: a database like an add-on's, empty, with its files on the root disk of its
 * machine, and in no network. Whoever holds it may run anything in it. One that a server died over has an owner that no
 * row knows, and goes with the next start.
 */
import { newId } from "#lib/ids.ts";
import { bringUp } from "#machines/placement/start-reserved.ts";
import type { Guest } from "#machines/host/guest.ts";
import { placeCold, release } from "#machines/placement/placement.ts";
import { withRoom } from "#machines/placement/reclaim.ts";
import type { AddonsContext } from "../context.ts";
import type { Instance } from "../engines/engine.ts";
import { requestOf } from "./machine.ts";
import { newPassword } from "../access/password.ts";
import { begin, untilAnswers } from "../engines/database-process.ts";
import { extentOf } from "../sizes.ts";
import type { AddonRow } from "../store.ts";

/** Describes machine owners without an add-on record. */
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
    const reservation = await withRoom(app, () =>
      app.db.transaction().execute((tx) => placeCold(app, tx, request)),
    );
    await bringUp(app, reservation);
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
    const { command } = await begin(guest, engine, instance);
    await untilAnswers(guest, engine, instance, command, signal);
    await engine.admit(guest, instance);
    return { guest, [Symbol.asyncDispose]: () => undo.disposeAsync() };
  } catch (error) {
    await undo.disposeAsync();
    throw error;
  }
}
