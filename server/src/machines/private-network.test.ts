import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, expect, test } from "vitest";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import { serviceAddress } from "@kontor/runtime/network/addresses.ts";
import type { App } from "#app.ts";
import { systemClock } from "#lib/clock.ts";
import { silentLog, testConfig, testDatabase, testSecrets } from "../../test/harness.ts";
import { startReserved } from "./placement/start-reserved.ts";
import { openMachines } from "./open.ts";
import type { MachineOwner } from "./machine-owner.ts";
import { type MachineRequest, place, type Reservation } from "./placement/placement.ts";
import {
  restoreMachine,
  consumeSnapshot,
  releaseMachine,
  commitSnapshot,
  placeRestored,
  captureMachine,
} from "./snapshots/snapshots.ts";

const { db } = await testDatabase();
const directory = await mkdtemp(join(tmpdir(), "kontor-machines-"));
const overrides = { cpuOvercommit: "100", memoryOvercommit: "10" };
const config = { ...testConfig(overrides), dataDir: directory };
const driver = new FakeDriver({ directory: join(directory, "machines") });
const machines = await openMachines({ config, db, clock: systemClock, log: silentLog, driver });
const app = { config, db, machines, secrets: testSecrets(), clock: systemClock, log: silentLog } as App;
const nobody: MachineOwner = { onServerStart: async () => {}, ended: async () => {} };
await machines.start(app, { sandbox: nobody, build: nobody, app: nobody });
afterAll(async () => {
  await machines.close();
  await rm(directory, { recursive: true });
});

const serves = { name: "db.shop.internal", address: serviceAddress(0), ports: [5432] };
const resources = { vcpus: 1, memoryBytes: 128 * 1024 ** 2, diskBytes: 1024 ** 3, maxProcesses: 100 };
let owners = 0;

afterEach(async () => {
  for (const row of await db.selectFrom("machines").selectAll().execute()) await machines.destroy(row);
});

async function request(change: Partial<MachineRequest> = {}): Promise<MachineRequest> {
  const template = machines.host.imageNames()[0] ?? "";
  return {
    ownerKind: "sandbox",
    ownerId: `sbx_${(owners += 1)}`,
    shape: { poolKey: `${template}/test`, template, resources },
    image: { id: (await machines.images.ensure(template)).id },
    network: "off",
    hostname: "test",
    env: {},
    ...change,
  };
}
async function start(change: Partial<MachineRequest> = {}): Promise<Reservation> {
  const asked = await request(change);
  const reservation = await db.transaction().execute((tx) => place(app, tx, asked));
  await startReserved(app, reservation);
  return reservation;
}
const networkOf = async (id: string) =>
  (await driver.list()).find((machine) => machine.id === id)?.spec?.privateNetwork;

test("starts a machine of a group in its network with its services, and records both in its row", async () => {
  const { row } = await start({ privateNetwork: { group: "workspace", serves } });
  expect(await networkOf(row.id)).toEqual({ group: "workspace", serves });
  expect([row.private_group, row.serves]).toEqual(["workspace", serves]);
});

test("never takes a pooled machine for a request with a group", async () => {
  const { shape } = await request();
  machines.pool.keep(shape, 1);
  await machines.pool.waitUntilFull();
  expect((await start({ privateNetwork: { group: "workspace" } })).warm).toBe(false);
  const warm = await start();
  expect(warm.warm).toBe(true);
  expect(await networkOf(warm.row.id)).toBeUndefined();
  machines.pool.keep(shape, 0);
});

test("returns a restored machine to its group, without services", async () => {
  const owner = { ownerKind: "sandbox", ownerId: "sbx_asleep" } as const;
  await start({ ...owner, privateNetwork: { group: "workspace", serves } });
  const taken = await captureMachine(app, owner);
  const how = { reason: "explicit", storedAt: systemClock.now(), expiresAt: null } as const;
  const snapshot = await db.transaction().execute((tx) => commitSnapshot(tx, taken, how));
  releaseMachine(app, taken);
  if (snapshot === undefined) throw new Error("it was not kept");
  const { row, evicted } = await db.transaction().execute((tx) => placeRestored(app, tx, snapshot));
  await restoreMachine(app, { row, evicted });
  await db.transaction().execute((tx) => consumeSnapshot(tx, row));
  expect(await networkOf(row.id)).toEqual({ group: "workspace" });
  expect([row.private_group, row.serves]).toEqual(["workspace", null]);
});
