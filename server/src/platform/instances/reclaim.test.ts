/** The host of these tests has memory for one machine. An idle function frees that memory for another function. */
import { afterAll, expect, test, vi } from "vitest";
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
const host = await instancesHost(db, { config: { maxMachines: "1", functionFrozenMinutes: "1000" } });
const code = `export default () => "fine";`;

afterAll(async () => {
  for (const { id } of await db.selectFrom("functions").select("id").execute()) await host.instances.stop(id);
});

function ask({ id }: TestFunction) {
  const asked = { method: "GET", path: "/", headers: {}, body: Buffer.alloc(0) };
  return host.instances.invoke(id, asked, new AbortController().signal);
}

async function stateOf({ id }: TestFunction): Promise<string[]> {
  const rows = await db
    .selectFrom("function_instances")
    .select("state")
    .where("function_id", "=", id)
    .execute();
  return rows.map(({ state }) => state);
}

test("stores a frozen function on disk when another function needs its memory, and leaves a busy one running", async () => {
  const one = await makeFunction(db);
  await deployHandler(db, host, one, code);
  const other = await makeFunction(db);
  await goLive(db, await makeVersion(db, host, other, 1, code));
  await host.instances.switched(other.id);
  await expect(ask(other)).rejects.toMatchObject({ code: "no_capacity" });
  await db.updateTable("functions").set({ idle_timeout_seconds: 0 }).where("id", "=", one.id).execute();
  await host.instances.changed(one.id);
  await vi.waitFor(async () => expect(await stateOf(one)).toEqual(["frozen"]), 10_000);
  expect(await ask(other)).toMatchObject({ status: 200, coldStart: true });
  expect(await stateOf(one)).toEqual(["asleep"]);
}, 20_000);
