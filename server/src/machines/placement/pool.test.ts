import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import { systemClock } from "#lib/clock.ts";
import { silentLog, testConfig, testDatabase } from "../../../test/harness.ts";
import { openMachines } from "../open.ts";
import { poolFloors } from "./pool.ts";

const gib = 1024 ** 3;
const resources = { vcpus: 1, memoryBytes: gib, diskBytes: gib, maxProcesses: 100 };
const auto = { poolTemplates: null, poolSize: 2, prepareTemplates: null };

test.for([
  ["only debian-12 on a small host", auto, 4, { "debian-12": 2 }],
  ["one interpreter from 8 GiB on", auto, 8, { "debian-12": 2, "code-interpreter": 1 }],
  [
    "no interpreter that is not prepared",
    { ...auto, prepareTemplates: ["debian-12"] },
    64,
    { "debian-12": 2 },
  ],
  [
    "an interpreter that is prepared",
    { ...auto, prepareTemplates: ["code-interpreter"] },
    64,
    { "debian-12": 2, "code-interpreter": 1 },
  ],
  ["nothing where the size is zero", { ...auto, poolSize: 0 }, 64, { "debian-12": 0, "code-interpreter": 0 }],
  [
    "the named templates on any host",
    { ...auto, poolTemplates: ["code-interpreter"] },
    1,
    { "code-interpreter": 2 },
  ],
  ["none where none is named", { ...auto, poolTemplates: [] }, 64, {}],
] as const)("keeps %s", ([, config, memoryGib, floors]) => {
  expect(Object.fromEntries(poolFloors(config, memoryGib * gib))).toEqual(floors);
});

test("fills the pool of one template while another is being made", async () => {
  const { db } = await testDatabase();
  const directory = await mkdtemp(join(tmpdir(), "kontor-pool-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const driver = new FakeDriver({ directory: join(directory, "machines") });
  const gate = Promise.withResolvers<void>();
  const ensureImage = driver.ensureImage.bind(driver);
  driver.ensureImage = async (recipe, progress) => {
    if (recipe.name === "code-interpreter") await gate.promise;
    return ensureImage(recipe, progress);
  };
  const config = {
    ...testConfig({ cpuOvercommit: "100", memoryOvercommit: "10", poolMax: "1", poolSize: "1" }),
    dataDir: directory,
  };
  const machines = await openMachines({ config, db, clock: systemClock, log: silentLog, driver });
  onTestFinished(() => machines.close());
  const waiting = async (): Promise<string[]> =>
    (await db.selectFrom("machines").select("pool_key").where("desired", "=", "frozen").execute())
      .map(({ pool_key: key }) => key ?? "")
      .toSorted();
  for (const template of ["code-interpreter", "debian-12"])
    machines.pool.keep({ poolKey: template, template, resources }, 1);
  await expect.poll(waiting).toEqual(["debian-12"]);
  gate.resolve();
  await machines.pool.waitUntilFull();
  expect(await waiting()).toEqual(["code-interpreter", "debian-12"]);
});

test("does not make a template that failed again with each claim", async () => {
  const { db } = await testDatabase();
  const directory = await mkdtemp(join(tmpdir(), "kontor-pool-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const driver = new FakeDriver({ directory: join(directory, "machines") });
  let tries = 0;
  driver.ensureImage = () => {
    tries += 1;
    return Promise.reject(new Error("no package source"));
  };
  const config = {
    ...testConfig({ cpuOvercommit: "100", memoryOvercommit: "10", poolMax: "1", poolSize: "1" }),
    dataDir: directory,
  };
  const machines = await openMachines({ config, db, clock: systemClock, log: silentLog, driver });
  onTestFinished(() => machines.close());
  for (let claim = 0; claim < 3; claim += 1) {
    machines.pool.keep({ poolKey: "debian-12", template: "debian-12", resources }, 1);
    await machines.pool.waitUntilFull();
  }
  expect(tries).toBe(1);
});
