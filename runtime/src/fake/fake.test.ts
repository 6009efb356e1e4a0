import { mkdir, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { conformance, execute, failureKind, machineSpec } from "../conformance.ts";
import { RuntimeError, type ImageRecipe, type MachineExit } from "../driver.ts";
import { FakeDriver } from "./driver.ts";

const recipe: ImageRecipe = { name: "test", promise: { sh: "1" }, ways: [], env: {}, probes: {} };

async function make() {
  const directory = await mkdtemp(join(tmpdir(), "kontor-fake-"));
  let driver = new FakeDriver({ directory });
  const open = async () => {
    await driver.open();
    const { id } = await driver.ensureImage(recipe);
    return { driver, image: id, layers: [] };
  };
  return {
    ...(await open()),
    again: async () => {
      driver = new FakeDriver({ directory });
      return (await open()).driver;
    },
    dispose: async () => {
      for (const { id } of await driver.list()) await driver.remove(id);
      await driver.close();
      await rm(directory, { recursive: true });
    },
  };
}

conformance("fake", make, { isolation: false, checkpoints: true, processesContinue: false });

let subject: Awaited<ReturnType<typeof make>>;
beforeEach(async () => {
  subject = await make();
});
afterEach(() => subject.dispose());

test("fails a verb once after fail(), and leaves the machine unchanged", async () => {
  const { driver, image } = subject;
  const spec = machineSpec(image);
  driver.fail("create", new RuntimeError("no_capacity", "full"));
  expect(await failureKind(driver.create(spec))).toBe("no_capacity");
  expect(await driver.list()).toEqual([]);
  await driver.create(spec);
  driver.fail("freeze", new RuntimeError("timeout", "late"));
  expect(await failureKind(driver.freeze(spec.id))).toBe("timeout");
  expect(await driver.list()).toMatchObject([{ state: "running" }]);
});

test("lists a machine ended by a test as dead with its reason, until it is removed", async () => {
  const { driver, image } = subject;
  const spec = machineSpec(image);
  await driver.create(spec);
  const exits: MachineExit["reason"][] = [];
  driver.onExit((_, { reason }) => exits.push(reason));
  const running = failureKind(execute(driver, spec.id, "sleep 60"));
  driver.end(spec.id, "out_of_memory");
  expect(await running).toBe("machine_died");
  expect(await driver.list()).toMatchObject([{ state: "dead", exit: { reason: "out_of_memory" } }]);
  expect(await failureKind(driver.freeze(spec.id))).toBe("not_running");
  await driver.remove(spec.id);
  expect(await driver.list()).toEqual([]);
  expect(exits).toEqual(["out_of_memory"]);
});

test("shares one build between two callers of the same image", async () => {
  const { driver } = subject;
  const [first, second] = await Promise.all([driver.ensureImage(recipe), driver.ensureImage({ ...recipe })]);
  expect(first).toBe(second);
});

test("ignores a machine whose create was interrupted by the end of the driver's process", async () => {
  const directory = await mkdtemp(join(tmpdir(), "kontor-fake-"));
  const unfinished = join(directory, "machines", "m0000000000000000000");
  await mkdir(unfinished, { recursive: true });
  const driver = new FakeDriver({ directory });
  await driver.open();
  expect(await driver.list()).toEqual([]);
  expect(await readdir(join(directory, "machines"))).toEqual([]);
  await rm(directory, { recursive: true });
});
