/** A session's machine in the session's API object, and the check whether an invoke must wait for the machine. */
import type { Db } from "#schema.ts";
import { type SandboxState, statesOf } from "#sandbox/sandboxes/overview.ts";
import { sessionParking } from "./errors.ts";
import { findMachine, findViews, type MachineView } from "./store.ts";

export const machineStatuses = ["none", "running", "parking", "parked", "lost"] as const;

export interface Machine {
  sandbox_id: string | null;
  status: (typeof machineStatuses)[number];
}

const none: Machine = { sandbox_id: null, status: "none" };

/** Returns the machines by session id. The value is null if the session's version has no machine. */
export async function machinesOf(
  db: Db,
  sessionIds: readonly string[],
): Promise<Map<string, Machine | null>> {
  if (sessionIds.length === 0) return new Map();
  const views = await findViews(db, sessionIds);
  const states = await statesOf(
    db,
    views.flatMap(({ sandbox_id }) => sandbox_id ?? []),
  );
  return new Map(views.map((view) => [view.session_id, toMachine(view, states)]));
}

function toMachine(
  { is_wanted, sandbox_id, state }: MachineView,
  states: ReadonlyMap<string, SandboxState>,
): Machine | null {
  if (sandbox_id === null || state === "ending") return is_wanted ? none : null;
  const sandbox = states.get(sandbox_id);
  if (sandbox?.termination_reason === "start_failed") return none;
  if (state === "lost" || !sandbox || sandbox.status === "terminated") return { sandbox_id, status: "lost" };
  if (state === "parking" || sandbox.transition === "pausing") return { sandbox_id, status: "parking" };
  return { sandbox_id, status: sandbox.status === "paused" ? "parked" : "running" };
}

/** Throws `session_parking` if the session's machine is being parked. */
export async function requireNotParking(tx: Db, sessionId: string): Promise<void> {
  if (await isParking(tx, sessionId)) throw sessionParking();
}

export async function isParking(tx: Db, sessionId: string): Promise<boolean> {
  return (await findMachine(tx, sessionId))?.state === "parking";
}
