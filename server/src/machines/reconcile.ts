/**
 * Compares the desired state with the observed one, at start and on a timer. Crash recovery and drift share this path:
 *
 * | desired | observed | action |
 * |---|---|---|
 * | gone | anything | remove the machine and its row |
 * | restoring for an owner | anything | undo: notify the owner, which stays as before; then remove |
 * | running for an owner | running | adopt; at start repeat the claim, which is idempotent |
 * | running for an owner | dead or missing | notify the owner, then remove |
 * | running for an owner in a suspended workspace | alive | hold |
 * | frozen for an owner | alive | hold, also if the server died before the freeze |
 * | waiting in a pool | frozen, and was ready | keep |
 * | waiting in a pool | anything else | remove, because it may have run user code |
 * | no row | anything | remove |
 */
import type { MachineExit, MachineState } from "@kontor/runtime/driver.ts";
import type { App } from "#app.ts";
import { orderFor } from "./placement/order.ts";
import { openEnv } from "./placement/sealed-env.ts";
import type { MachineOwners } from "./machine-owner.ts";
import { type MachineRow, machinesOfHost } from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "log">;

interface ObservedMachine {
  machine: string;
  state: MachineState;
  exit: MachineExit | null;
}

export type Verdict = "keep" | "hold" | "adopt" | "ended" | "undo" | "remove";

/** Decides the action for one row by the table above; pure. `isSuspended`: the workspace is suspended. */
export function decideAction(
  row: MachineRow,
  found: ObservedMachine | undefined,
  isSuspended = false,
): Verdict {
  if (row.desired === "removed") return "remove";
  if (row.snapshot_id !== null) return "undo";
  if (row.owner_kind === "pool") {
    return row.observed === "ready" && found?.state === "frozen" ? "keep" : "remove";
  }
  if (!found || found.state === "dead") return "ended";
  return row.desired === "frozen" || isSuspended ? "hold" : "adopt";
}

/** `atStart`: no start is in flight in this process yet, so an unfinished start will never complete. */
export async function reconcile(
  app: Needs,
  owners: MachineOwners,
  options: { atStart: boolean },
): Promise<void> {
  const { host } = app.machines;
  // Rows are read first. A machine made between the two reads has no row here, and is looked up again below.
  const rows = await machinesOfHost(app.db, host.id);
  const found = new Map((await host.list()).map((machine) => [machine.machine, machine]));
  const settled = rows.filter(
    ({ id }) => !host.isStarting(id) && !app.machines.isBeingRemoved(id) && !app.machines.isProtected(id),
  );
  for (const row of settled) {
    if (!options.atStart && isYoung(row)) continue;
    try {
      const isSuspended = options.atStart && (await app.machines.suspension.isToBeHeld(owners, row));
      await actions[decideAction(row, found.get(row.id), isSuspended)](
        app,
        owners,
        row,
        found.get(row.id) ?? null,
        options.atStart,
      );
    } catch (error) {
      app.log.error(
        { machine: row.id, err: error },
        "reconcile failed for a machine; the next round tries again",
      );
    }
  }
  const known = new Set((await machinesOfHost(app.db, host.id)).map((row) => row.id));
  for (const { machine } of found.values()) {
    if (known.has(machine) || rows.some((row) => row.id === machine)) continue;
    app.log.warn({ machine }, "removing a machine without a row");
    await host.remove({ machine, hostEpoch: host.epoch, generation: Number.MAX_SAFE_INTEGER });
  }
}

const actions: Record<
  Verdict,
  (
    app: Needs,
    owners: MachineOwners,
    row: MachineRow,
    found: ObservedMachine | null,
    atStart: boolean,
  ) => Promise<void> | void
> = {
  keep: () => {},
  remove: (app, _owners, row) => app.machines.destroy(row),
  undo: async (app, owners, row) => {
    if (row.owner_kind !== "pool" && row.owner_id !== null)
      await owners[row.owner_kind]?.onRestoreLost?.(row.owner_id);
    await app.machines.destroy(row);
  },
  hold: async (app, _owners, row, _found, atStart) => {
    if (!atStart) return;
    await app.machines.host.freeze(orderFor(row));
    app.machines.sampler.watch(row.id);
  },
  adopt: async (app, _owners, row, _found, atStart) => {
    if (!atStart) return;
    const { vcpus, memory_bytes: memoryBytes, max_processes: maxProcesses, network, hostname } = row;
    const resources = { vcpus, memoryBytes, maxProcesses };
    const spec = { image: row.image_id, resources, network, hostname, env: openEnv(app, row) };
    await app.machines.host.claim(orderFor(row), spec, { isAgain: true });
    app.machines.sampler.watch(row.id);
    app.log.info({ machine: row.id, owner: row.owner_id }, "adopted a running machine");
  },
  ended: async (app, owners, row, found, atStart) => {
    const cpuSeconds = await app.machines.cpuSeconds(row.id);
    if (row.owner_kind !== "pool" && row.owner_id !== null) {
      const neverStarted = atStart && !found;
      await owners[row.owner_kind]?.ended(row.owner_id, {
        exit: found?.exit ?? null,
        neverStarted,
        cpuSeconds,
      });
    }
    await app.machines.destroy(row);
  },
};

/** Between commit and start, a machine has a row but no instance; it has a minute to appear. */
function isYoung(row: MachineRow): boolean {
  return Date.now() - (row.claimed_at ?? row.created_at).getTime() < 60_000 && row.desired !== "removed";
}
