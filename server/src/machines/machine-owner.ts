/**
 * Who owns machines, seen from below. This layer knows no sandbox; main hands it one of these per kind of owner, so
 * that an owner hears when its machine ended without having been asked to.
 */
import type { MachineExit } from "@kontor/runtime/driver.ts";
import type { OwnerKind } from "./store.ts";

export interface Ending {
  /** Null where nobody saw it: the machine was gone when the server came back. */
  exit: MachineExit | null;
  /** True where its start was never finished, so that nobody was told of it. */
  neverStarted: boolean;
  cpuSeconds: number;
}

export interface OwnerLabel {
  workspaceId: string;
  target: { kind: string; id: string; label: string };
}

export interface MachineOwner {
  /** The server starts: what an earlier one had under way is under way no more. Comes before everything else. */
  begins(): Promise<void>;
  ended(ownerId: string, ending: Ending): Promise<void>;
  /** Workspace and name of the owner, for notifications about its machine. Absent when there are none. */
  describe?(ownerId: string): Promise<OwnerLabel | undefined>;
  /** What was being restored for it is gone, and nobody was told of it. Absent where nothing ever is. */
  unrestored?(ownerId: string): Promise<void>;
}

/** Machines of a kind that nobody answers for go when they end. */
export type MachineOwners = Partial<Record<OwnerKind, MachineOwner>>;
