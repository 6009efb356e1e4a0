/** Tests the recovery of functions after a crash of the server at a named point. */
import { afterEach, expect, test, vi } from "vitest";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../test/harness.ts";
import {
  deployHandler,
  goLive,
  instancesHost,
  type TestFunction,
  makeFunction,
  makeVersion,
} from "./testing/instances-host.ts";

const { db } = await testDatabase();
const host = await instancesHost(db, { config: { functionFrozenMinutes: "1000" } });
const { signal } = new AbortController();
const code = `export default () => "fine";`;

afterEach(async () => {
  onKillPoint(undefined);
  for (const { id } of await db.selectFrom("functions").select("id").execute()) await host.instances.stop(id);
  await db.deleteFrom("functions").execute();
});

function endAt(point: string): Promise<void> {
  const there = Promise.withResolvers<void>();
  onKillPoint(async (reached) => {
    if (reached !== point) return;
    there.resolve();
    throw new Error(`the server ended at ${point}`);
  });
  return there.promise;
}

async function restart(): Promise<void> {
  onKillPoint(undefined);
  await host.restart();
}

async function ask({ id }: TestFunction) {
  const asked = { method: "GET", path: "/", headers: {}, body: Buffer.alloc(0) };
  const { body, coldStart } = await host.instances.invoke(id, asked, signal);
  return { body: body.toString(), coldStart };
}

async function idle(made: TestFunction): Promise<void> {
  await db.updateTable("functions").set({ idle_timeout_seconds: 0 }).where("id", "=", made.id).execute();
  await host.instances.changed(made.id);
}

/** Returns instances, desired machines and snapshots, each with its owner. */
async function listRemaining() {
  const [instances, machines, snapshots] = await Promise.all([
    db.selectFrom("function_instances").select(["id", "state"]).execute(),
    db.selectFrom("machines").select("owner_id").where("desired", "<>", "removed").execute(),
    db.selectFrom("snapshots").select("owner_id").execute(),
  ]);
  return {
    states: instances.map(({ state }) => state),
    ids: instances.map(({ id }) => id),
    machines: machines.map(({ owner_id }) => owner_id),
    snapshots: snapshots.map(({ owner_id }) => owner_id),
  };
}

test.each(["function.placed", "function.booted", "function.started"])(
  "%s: removes the interrupted start, and serves the next request with one instance",
  async (point) => {
    const made = await makeFunction(db);
    await goLive(db, await makeVersion(db, host, made, 1, code));
    await host.instances.switched(made.id);
    const reached = endAt(point);
    const asked = ask(made).catch((error: unknown) => error);
    await reached;
    await restart();
    await asked;
    // The fake driver's processes end with it, so no machine is adopted.
    expect(await listRemaining()).toEqual({ states: [], ids: [], machines: [], snapshots: [] });
    expect(await ask(made)).toEqual({ body: "fine", coldStart: true });
    expect((await listRemaining()).machines).toHaveLength(1);
  },
);

test.each(["function.held", "function.taken"])(
  "%s: leaves one instance, frozen, or removes it with its machine",
  async (point) => {
    const made = await makeFunction(db);
    await deployHandler(db, host, made, code);
    await ask(made);
    const reached = endAt(point);
    await idle(made);
    if (point === "function.taken") {
      await vi.waitFor(async () => expect((await listRemaining()).states).toEqual(["frozen"]), 10_000);
      void host.app.machines.reclaimMemory().catch(() => {});
    }
    await reached;
    await restart();
    const { states, machines, snapshots } = await listRemaining();
    expect(states.length).toBe(machines.length);
    expect(snapshots).toEqual([]);
    expect(await host.app.machines.host.listSnapshots()).toEqual([]);
    expect(await ask(made)).toMatchObject({ body: "fine" });
    expect((await listRemaining()).machines).toHaveLength(1);
  },
  20_000,
);

test("function.stored: leaves the instance stored, with one snapshot and no machine", async () => {
  const made = await makeFunction(db);
  await deployHandler(db, host, made, code);
  await ask(made);
  await idle(made);
  await vi.waitFor(async () => expect((await listRemaining()).states).toEqual(["frozen"]), 10_000);
  const { ids } = await listRemaining();
  // The change is committed, and the next server does the clean-up.
  const goesOn = Promise.withResolvers<void>();
  onKillPoint(async (point) => {
    if (point === "function.stored") await goesOn.promise;
  });
  const given = host.app.machines.reclaimMemory();
  await vi.waitFor(async () => expect((await listRemaining()).states).toEqual(["asleep"]), 10_000);
  expect(await listRemaining()).toEqual({ states: ["asleep"], ids, machines: [], snapshots: ids });
  expect(await host.app.machines.host.listSnapshots()).toHaveLength(1);
  expect(host.instances.isIdle(made.id)).toBe(true);
  goesOn.resolve();
  expect(await given).toBe(true);
  await restart();
  expect(await listRemaining()).toEqual({ states: ["asleep"], ids, machines: [], snapshots: ids });
}, 20_000);

test("function.ended: removes an instance whose end had begun", async () => {
  const made = await makeFunction(db);
  await deployHandler(db, host, made, code);
  const reached = endAt("function.ended");
  void host.instances.stop(made.id).catch(() => {});
  await reached;
  await restart();
  expect(await listRemaining()).toEqual({ states: [], ids: [], machines: [], snapshots: [] });
  expect(await ask(made)).toEqual({ body: "fine", coldStart: true });
});

test("removes the unfinished proof of an earlier server", async () => {
  const made = await makeFunction(db);
  await host.instances.prove(await makeVersion(db, host, made, 1, code), signal);
  expect((await listRemaining()).states).toEqual(["running"]);
  await restart();
  expect(await listRemaining()).toEqual({ states: [], ids: [], machines: [], snapshots: [] });
});

test("starts a function cold when the bytes of its snapshot are missing", async () => {
  const made = await makeFunction(db);
  await deployHandler(db, host, made, code);
  await ask(made);
  await idle(made);
  await vi.waitFor(async () => expect((await listRemaining()).states).toEqual(["frozen"]), 10_000);
  expect(await host.app.machines.reclaimMemory()).toBe(true);
  for (const id of await host.app.machines.host.listSnapshots())
    await host.app.machines.host.dropSnapshot(id);
  await restart();
  expect(await listRemaining()).toEqual({ states: [], ids: [], machines: [], snapshots: [] });
  expect(await ask(made)).toEqual({ body: "fine", coldStart: true });
}, 20_000);

test("starts a function cold when its snapshot cannot be restored, and logs the failure", async () => {
  const made = await makeFunction(db);
  await deployHandler(db, host, made, code);
  await ask(made);
  await idle(made);
  await vi.waitFor(async () => expect((await listRemaining()).states).toEqual(["frozen"]), 10_000);
  expect(await host.app.machines.reclaimMemory()).toBe(true);
  await db.updateTable("functions").set({ idle_timeout_seconds: 300 }).where("id", "=", made.id).execute();
  await host.instances.changed(made.id);
  host.driver.fail("restore", new Error("damaged"));
  expect(await ask(made)).toEqual({ body: "fine", coldStart: true });
  expect((await listRemaining()).snapshots).toEqual([]);
  const { lines } = await host.instances.ring(made.id).tail(10);
  expect(lines.map(({ text }) => text)).toContain(
    "The function could not be woken from its memory, and is started again.",
  );
}, 20_000);
