/** Reactions of a sandbox when its machine ends unexpectedly. */
import type { App } from "#app.ts";
import type { Ending, MachineOwner } from "#machines/machine-owner.ts";
import { deleteReserved, endMoves, findById } from "../store.ts";
import type { TerminationReason } from "../tables.ts";
import { endSandbox } from "../lifecycle/terminate.ts";

export function sandboxOwner(app: Pick<App, "db" | "machines" | "clock" | "log">): MachineOwner {
  return {
    onServerStart: () => endMoves(app.db, { except: [] }),
    ended: async (id, ending) => {
      await endSandbox(app, { id, reason: reasonOf(ending), cpuSeconds: ending.cpuSeconds });
    },
    describe: async (id) => {
      const row = await findById(app.db, id);
      return row && { workspaceId: row.workspace_id, target: { kind: "sandbox", id, label: id } };
    },
    // An interrupted resume leaves the sandbox paused. An interrupted clone is removed.
    onRestoreLost: (id) => deleteReserved(app.db, [id]),
  };
}

function reasonOf({ exit, neverStarted }: Pick<Ending, "exit" | "neverStarted">): TerminationReason {
  if (exit?.reason === "out_of_memory") return "out_of_memory";
  return neverStarted ? "start_failed" : "host_lost";
}
