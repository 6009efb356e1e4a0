import { expect, test } from "vitest";
import { decideAction } from "./reconcile.ts";
import type { MachineRow } from "./store.ts";

const row = (change: Partial<MachineRow>): MachineRow => ({
  id: "m0000000000000000000",
  host_id: "h",
  host_epoch: 1,
  generation: 1,
  pool_key: null,
  image_id: "i",
  owner_kind: "sandbox",
  owner_id: "sbx_1",
  isolation: "gvisor",
  vcpus: 1,
  memory_bytes: 1,
  disk_bytes: 1,
  max_processes: 1,
  network: "off",
  hostname: "h",
  env_sealed: null,
  desired: "running",
  observed: "ready",
  takeover: "none",
  created_at: new Date(0),
  claimed_at: null,
  snapshot_id: null,
  volume: null,
  private_group: null,
  serves: null,
  ...change,
});
const observedMachine = (state: "running" | "frozen" | "dead") => ({ machine: "m", state, exit: null });

test("adopts an owned machine that is alive, frozen or not", () => {
  expect(decideAction(row({}), observedMachine("running"))).toBe("adopt");
  expect(decideAction(row({}), observedMachine("frozen"))).toBe("adopt");
});

test("ends an owned machine that is dead or missing, and notifies its owner", () => {
  expect(decideAction(row({}), observedMachine("dead"))).toBe("ended");
  expect(decideAction(row({}), undefined)).toBe("ended");
});

test("keeps a pool machine only if it is frozen and was ready, because a thawed one may have been used", () => {
  const warm = { owner_kind: "pool", owner_id: null, desired: "frozen" } as const;
  expect(decideAction(row(warm), observedMachine("frozen"))).toBe("keep");
  expect(decideAction(row(warm), observedMachine("running"))).toBe("remove");
  expect(decideAction(row({ ...warm, observed: "starting" }), observedMachine("frozen"))).toBe("remove");
  expect(decideAction(row(warm), undefined)).toBe("remove");
});

test("removes a machine whose desired state is gone, in any observed state", () => {
  for (const state of ["running", "frozen", "dead"] as const) {
    expect(decideAction(row({ desired: "removed" }), observedMachine(state))).toBe("remove");
  }
  expect(decideAction(row({ desired: "removed" }), undefined)).toBe("remove");
});

test("undoes an unfinished restore and leaves its owner as before", () => {
  expect(decideAction(row({ snapshot_id: "snap_1" }), observedMachine("running"))).toBe("undo");
  expect(decideAction(row({ snapshot_id: "snap_1" }), undefined)).toBe("undo");
  expect(decideAction(row({ snapshot_id: "snap_1", desired: "removed" }), observedMachine("running"))).toBe(
    "remove",
  );
});
