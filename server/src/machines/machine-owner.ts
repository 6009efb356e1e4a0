/**
 * The owner of machines, as the machine layer sees it. This layer knows no sandbox. `compose` passes in one object per
 * kind of owner, which is called when a machine ends unexpectedly.
 */
import type { MachineExit } from "@kontor/runtime/driver.ts";
import type { OwnerKind } from "./store.ts";

export interface Ending {
  /** Null if the machine ended while the server was down. */
  exit: MachineExit | null;
  /** True if the machine's start never completed, so that no caller has seen the machine. */
  neverStarted: boolean;
  cpuSeconds: number;
}

export interface OwnerLabel {
  workspaceId: string;
  target: { kind: string; id: string; label: string };
}

export interface MachineOwner {
  /** Called at start, before everything else: operations of an earlier server are no longer in flight. */
  onServerStart(): Promise<void>;
  ended(ownerId: string, ending: Ending): Promise<void>;
  /** Workspace and name of the owner, for notifications about its machine. Absent when there are none. */
  describe?(ownerId: string): Promise<OwnerLabel | undefined>;
  /** Called when a restore for this owner was lost before it completed. Absent for owners that never restore. */
  onRestoreLost?(ownerId: string): Promise<void>;
}

/** Owners by kind. If a kind has no owner here, its machines are removed when they end. */
export type MachineOwners = Partial<Record<OwnerKind, MachineOwner>>;
