import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeEach, expect, test } from "vitest";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import type { App } from "#app.ts";
import { systemClock } from "#lib/clock.ts";
import { silentLog, testConfig, testDatabase, testSecrets } from "../../../test/harness.ts";
import { startReserved } from "../placement/start-reserved.ts";
import { openMachines } from "../open.ts";
import { place } from "../placement/placement.ts";
import type { MachineRow } from "../store.ts";
import { DiskGuard, type DiskHold, writersToHold } from "./guard.ts";

const MiB = 1024 ** 2;
const reserveBytes = 40 * MiB;
const { db } = await testDatabase();
const directory = await mkdtemp(join(tmpdir(), "kontor-disk-"));
const config = {
  ...testConfig({ cpuOvercommit: "100", memoryOvercommit: "10", poolMax: "0", poolSize: "0" }),
  dataDir: directory,
};
const driver = new FakeDriver({ directory: join(directory, "machines") });
const machines = await openMachines({ config, db, clock: systemClock, log: silentLog, driver });
const app = { config, db, machines, secrets: testSecrets(), clock: systemClock, log: silentLog } as App;
afterAll(async () => {
  await machines.close();
  await rm(directory, { recursive: true });
});

let guard: DiskGuard;
let announced: DiskHold[];
let nowMs: number;
let owners = 0;

beforeEach(() => {
  announced = [];
  nowMs = 0;
  // All bytes of this disk that machines' files do not occupy are free.
  driver.diskSizeBytes = 100 * MiB;
  guard = new DiskGuard({
    host: machines.host,
    db,
    log: silentLog,
    reserveBytes,
    announce: async (hold) => void announced.push(hold),
  });
});
afterEach(async () => {
  for (const row of await db.selectFrom("machines").selectAll().execute()) await machines.destroy(row);
});

async function start(): Promise<MachineRow> {
  const template = machines.host.imageNames()[0] ?? "";
  const resources = { vcpus: 1, memoryBytes: 128 * MiB, diskBytes: 1024 * MiB, maxProcesses: 100 };
  const reservation = await db.transaction().execute(async (tx) =>
    place(app, tx, {
      ownerKind: "sandbox",
      ownerId: `sbx_${(owners += 1)}`,
      shape: { poolKey: `${template}/test`, template, resources },
      image: { id: (await machines.images.ensure(template)).id },
      network: "off",
      hostname: "test",
      env: {},
    }),
  );
  await startReserved(app, reservation);
  return reservation.row;
}

/** A process of the machine writes a file. */
async function write(machine: MachineRow, name: string, mib: number): Promise<void> {
  const argv = ["head", "-c", String(mib * MiB), "/dev/zero"];
  const running = await machines.connect(machine.id).spawn({
    shell: `${argv.join(" ")} > ${name}`,
    cwd: "/workspace",
    onDisconnect: "kill",
  });
  for await (const _ of running.output);
  expect((await running.exit).code).toBe(0);
}

const look = () => guard.look((nowMs += 2_000));
const stateOf = async ({ id }: MachineRow) => (await driver.list()).find((each) => each.id === id)?.state;

test("freezes the machine that wrote most since the last check, not the machine with the fullest disk", async () => {
  const [large, writer, idle] = [await start(), await start(), await start()];
  await write(large, "large", 40);
  await look();
  await write(writer, "fast", 15);
  await write(large, "slow", 1);
  await look();
  expect(await Promise.all([stateOf(large), stateOf(writer), stateOf(idle)])).toEqual([
    "running",
    "frozen",
    "running",
  ]);
  expect(announced).toMatchObject([{ machine: { id: writer.id }, writtenBytes: 15 * MiB, isEnded: false }]);
});

test("thaws a machine once a quarter more than the reserve is free, and not before", async () => {
  const [kept, writer] = [await start(), await start()];
  await write(kept, "kept", 50);
  await look();
  await write(writer, "fast", 15);
  await look();
  expect(await stateOf(writer)).toBe("frozen");
  await write(kept, "kept", 38);
  await look();
  // 47 MiB are free, which is less than a quarter above the reserve of 40 MiB.
  expect(await stateOf(writer)).toBe("frozen");
  await write(kept, "kept", 20);
  await look();
  expect(await stateOf(writer)).toBe("running");
});

test("retries to thaw a machine after a failure", async () => {
  const writer = await start();
  await look();
  await write(writer, "fast", 55);
  await look();
  expect(await stateOf(writer)).toBe("frozen");
  driver.diskSizeBytes = 1000 * MiB;
  driver.fail("thaw", new Error("it cannot be thawed"));
  await expect(look()).rejects.toThrow("it cannot be thawed");
  await look();
  expect(await stateOf(writer)).toBe("running");
});

test("does not thaw a machine that its owner froze", async () => {
  const writer = await start();
  await look();
  await write(writer, "fast", 55);
  await look();
  expect(await stateOf(writer)).toBe("frozen");
  await db.updateTable("machines").set({ desired: "frozen" }).where("id", "=", writer.id).execute();
  driver.diskSizeBytes = 1000 * MiB;
  await look();
  await look();
  expect(await stateOf(writer)).toBe("frozen");
});

test("ends a machine that cannot be frozen", async () => {
  const writer = await start();
  await look();
  driver.fail("freeze", new Error("it cannot be frozen"));
  await write(writer, "fast", 55);
  await look();
  expect(await stateOf(writer)).toBeUndefined();
  expect(announced).toMatchObject([{ machine: { id: writer.id }, isEnded: true }]);
});

test("freezes no machine when other programs fill the disk", async () => {
  const machine = await start();
  await look();
  await write(machine, "little", 0.03125);
  driver.diskFreeBytes = 20 * MiB;
  await look();
  driver.diskFreeBytes = 1024 ** 4;
  expect(await stateOf(machine)).toBe("running");
});

test("freezes one writer per check, and below half of the reserve as many as necessary", () => {
  const writers: [string, number][] = [
    ["a", 30 * MiB],
    ["b", 20 * MiB],
    ["c", 1],
  ];
  const at = (freeBytes: number) =>
    writersToHold(writers, { freeBytes, seconds: 2, reserveBytes }).map(([id]) => id);
  expect(at(1000 * MiB)).toEqual([]);
  // In ten seconds 250 MiB are written.
  expect(at(280 * MiB)).toEqual(["a"]);
  expect(at(30 * MiB)).toEqual(["a"]);
  expect(at(19 * MiB)).toEqual(["a", "b"]);
});
