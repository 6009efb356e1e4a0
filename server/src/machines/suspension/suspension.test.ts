import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import { setSuspended } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { systemClock } from "#lib/clock.ts";
import { makePerson } from "../../../test/factories.ts";
import { silentLog, testConfig, testDatabase, testSecrets } from "../../../test/harness.ts";
import { startReserved } from "../placement/start-reserved.ts";
import { openMachines } from "../open.ts";
import { place } from "../placement/placement.ts";
import { orderFor } from "../placement/order.ts";
import type { MachineRow } from "../store.ts";

const MiB = 1024 ** 2;
const { db } = await testDatabase();
const directory = await mkdtemp(join(tmpdir(), "kontor-suspension-"));
const config = {
  ...testConfig({ cpuOvercommit: "100", memoryOvercommit: "10", poolMax: "0", poolSize: "0" }),
  dataDir: directory,
};
const driver = new FakeDriver({ directory: join(directory, "machines") });
const machines = await openMachines({ config, db, clock: systemClock, log: silentLog, driver });
const app = { config, db, machines, secrets: testSecrets(), clock: systemClock, log: silentLog } as App;
afterAll(async () => {
  for (const row of await db.selectFrom("machines").selectAll().execute()) await machines.destroy(row);
  await machines.close();
  await rm(directory, { recursive: true });
});

const described: string[] = [];
/** The workspace of each owner of a machine. */
const workspaces = new Map<string, string>();
const owners = {
  sandbox: {
    onServerStart: async () => {},
    ended: async () => {},
    describe: async (id: string) => {
      described.push(id);
      const workspaceId = workspaces.get(id);
      return workspaceId === undefined
        ? undefined
        : { workspaceId, target: { kind: "sandbox", id, label: id } };
    },
  },
};
const look = () => machines.suspension.look(owners);
const suspend = (workspaceId: string, isSuspended: boolean) =>
  setSuspended(app, systemActor("test"), workspaceId, isSuspended);
const stateOf = async (row: MachineRow) => (await driver.list()).find(({ id }) => id === row.id)?.state;

/** Starts a machine in a workspace of its own. */
async function start(): Promise<{ row: MachineRow; workspaceId: string }> {
  const { workspace } = await makePerson(db);
  const ownerId = `sbx_${workspaces.size}`;
  workspaces.set(ownerId, workspace.id);
  const template = machines.host.imageNames()[0] ?? "";
  const resources = { vcpus: 1, memoryBytes: 128 * MiB, diskBytes: 1024 * MiB, maxProcesses: 100 };
  const image = { id: (await machines.images.ensure(template)).id };
  const shape = { poolKey: `${template}/test`, template, resources };
  const request = { ownerKind: "sandbox", ownerId, shape, image, network: "off", hostname: "test" } as const;
  const reservation = await db.transaction().execute((tx) => place(app, tx, { ...request, env: {} }));
  await startReserved(app, reservation);
  return { row: reservation.row, workspaceId: workspace.id };
}

test("freezes a machine again after a snapshot that failed has thawed it", async () => {
  const { row, workspaceId } = await start();
  await suspend(workspaceId, true);
  await look();
  driver.fail("checkpoint", new RuntimeError("failed", "no luck"));
  await expect(machines.host.pause(orderFor(row), "snap_1")).rejects.toThrow("no luck");
  expect(await stateOf(row)).toBe("running");
  await look();
  expect(await stateOf(row)).toBe("frozen");
  await suspend(workspaceId, false);
  await look();
  expect(await stateOf(row)).toBe("running");
});

test("resumes the other workspaces when one cannot be resumed", async () => {
  const [broken, other] = [await start(), await start()];
  let isBroken = true;
  machines.suspension.onRelease(async (_tx, { workspaceId }) => {
    if (isBroken && workspaceId === broken.workspaceId) throw new Error("no luck");
  });
  for (const { workspaceId } of [broken, other]) await suspend(workspaceId, true);
  await look();
  for (const { workspaceId } of [broken, other]) await suspend(workspaceId, false);
  await look();
  expect(await stateOf(other.row)).toBe("running");
  isBroken = false;
  await look();
  const rows = await db.selectFrom("workspaces").select("held_since").execute();
  expect(rows.filter(({ held_since }) => held_since !== null)).toEqual([]);
  expect(await stateOf(broken.row)).toBe("running");
});

test("looks up the workspace of a machine once", async () => {
  const [{ workspaceId }, { row }] = [await start(), await start()];
  await suspend(workspaceId, true);
  await look();
  await look();
  expect(described.filter((id) => id === row.owner_id)).toHaveLength(1);
  await suspend(workspaceId, false);
  await look();
});
