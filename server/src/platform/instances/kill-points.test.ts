/** What the next server makes of what one left that ended at a named point. */
import { afterEach, expect, test, vi } from "vitest";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../test/harness.ts";
import {
  deployed,
  goLive,
  instancesHost,
  type Made,
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

async function ask({ id }: Made) {
  const asked = { method: "GET", path: "/", headers: {}, body: Buffer.alloc(0) };
  const { body, coldStart } = await host.instances.invoke(id, asked, signal);
  return { body: body.toString(), coldStart };
}

async function idle(made: Made): Promise<void> {
  await db.updateTable("functions").set({ idle_timeout_seconds: 0 }).where("id", "=", made.id).execute();
  await host.instances.changed(made.id);
}

/** Rows of instances, machines that are to be there, and snapshots: who has them. */
async function left() {
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
  "%s: nothing of the start is left but what runs, and who comes next is answered by one instance",
  async (point) => {
    const made = await makeFunction(db);
    await goLive(db, await makeVersion(db, host, made, 1, code));
    await host.instances.switched(made.id);
    const reached = endAt(point);
    const asked = ask(made).catch((error: unknown) => error);
    await reached;
    await restart();
    await asked;
    // The fake driver's processes end with it, so that none is adopted.
    expect(await left()).toEqual({ states: [], ids: [], machines: [], snapshots: [] });
    expect(await ask(made)).toEqual({ body: "fine", coldStart: true });
    expect((await left()).machines).toHaveLength(1);
  },
);

test.each(["function.held", "function.taken"])(
  "%s: the instance is held, or gone with its machine; there are never two",
  async (point) => {
    const made = await makeFunction(db);
    await deployed(db, host, made, code);
    await ask(made);
    const reached = endAt(point);
    await idle(made);
    if (point === "function.taken") {
      await vi.waitFor(async () => expect((await left()).states).toEqual(["frozen"]), 10_000);
      void host.app.machines.giveRoom().catch(() => {});
    }
    await reached;
    await restart();
    const { states, machines, snapshots } = await left();
    expect(states.length).toBe(machines.length);
    expect(snapshots).toEqual([]);
    expect(await host.app.machines.host.listSnapshots()).toEqual([]);
    expect(await ask(made)).toMatchObject({ body: "fine" });
    expect((await left()).machines).toHaveLength(1);
  },
  20_000,
);

test("function.stored: it is asleep, with one snapshot and no machine", async () => {
  const made = await makeFunction(db);
  await deployed(db, host, made, code);
  await ask(made);
  await idle(made);
  await vi.waitFor(async () => expect((await left()).states).toEqual(["frozen"]), 10_000);
  const { ids } = await left();
  // It is committed: what comes after is cleaning up, and the next server does that.
  const goesOn = Promise.withResolvers<void>();
  onKillPoint(async (point) => {
    if (point === "function.stored") await goesOn.promise;
  });
  const given = host.app.machines.giveRoom();
  await vi.waitFor(async () => expect((await left()).states).toEqual(["asleep"]), 10_000);
  expect(await left()).toEqual({ states: ["asleep"], ids, machines: [], snapshots: ids });
  expect(await host.app.machines.host.listSnapshots()).toHaveLength(1);
  expect(host.instances.isIdle(made.id)).toBe(true);
  goesOn.resolve();
  expect(await given).toBe(true);
  await restart();
  expect(await left()).toEqual({ states: ["asleep"], ids, machines: [], snapshots: ids });
}, 20_000);

test("function.ended: nothing is left of an instance that was being ended", async () => {
  const made = await makeFunction(db);
  await deployed(db, host, made, code);
  const reached = endAt("function.ended");
  void host.instances.stop(made.id).catch(() => {});
  await reached;
  await restart();
  expect(await left()).toEqual({ states: [], ids: [], machines: [], snapshots: [] });
  expect(await ask(made)).toEqual({ body: "fine", coldStart: true });
});

test("a proof that was never switched to is gone with the server that began it", async () => {
  const made = await makeFunction(db);
  await host.instances.prove(await makeVersion(db, host, made, 1, code), signal);
  expect((await left()).states).toEqual(["running"]);
  await restart();
  expect(await left()).toEqual({ states: [], ids: [], machines: [], snapshots: [] });
});

test("a snapshot whose bytes are gone is a start from nothing", async () => {
  const made = await makeFunction(db);
  await deployed(db, host, made, code);
  await ask(made);
  await idle(made);
  await vi.waitFor(async () => expect((await left()).states).toEqual(["frozen"]), 10_000);
  expect(await host.app.machines.giveRoom()).toBe(true);
  for (const id of await host.app.machines.host.listSnapshots())
    await host.app.machines.host.dropSnapshot(id);
  await restart();
  expect(await left()).toEqual({ states: [], ids: [], machines: [], snapshots: [] });
  expect(await ask(made)).toEqual({ body: "fine", coldStart: true });
}, 20_000);

test("one that cannot be restored is a start from nothing, and its log says so", async () => {
  const made = await makeFunction(db);
  await deployed(db, host, made, code);
  await ask(made);
  await idle(made);
  await vi.waitFor(async () => expect((await left()).states).toEqual(["frozen"]), 10_000);
  expect(await host.app.machines.giveRoom()).toBe(true);
  await db.updateTable("functions").set({ idle_timeout_seconds: 300 }).where("id", "=", made.id).execute();
  await host.instances.changed(made.id);
  host.driver.fail("restore", new Error("damaged"));
  expect(await ask(made)).toEqual({ body: "fine", coldStart: true });
  expect((await left()).snapshots).toEqual([]);
  const { lines } = await host.instances.ring(made.id).tail(10);
  expect(lines.map(({ text }) => text)).toContain("It could not be woken where it was, and is started anew.");
}, 20_000);
