/** The host of these tests has memory for one machine. */
import { expect, test, vi } from "vitest";
import { testDatabase } from "../../../../test/harness.ts";
import { personOn } from "#platform/testing/platform-app.ts";
import { findAddon } from "../find.ts";
import { addonsHost, make, projectOf } from "../testing/addons-host.ts";

const { db } = await testDatabase();
const host = await addonsHost(db, { maxMachines: "1" });

async function up(id: string): Promise<void> {
  await vi.waitFor(async () => expect((await findAddon(db, id))?.status).toBe("running"), 20_000);
}

test("starts an add-on and a throwaway instance once other machines free their memory", async () => {
  const actor = await personOn(db, "team");
  const { id: projectId } = await projectOf(host, actor);
  const first = await make(host, actor, projectId, { kind: "redis" });
  await up(first.id);
  let asked = 0;
  let gives: string | undefined;
  host.app.machines.onLowMemory(async () => {
    asked += 1;
    if (gives === undefined) return false;
    await host.addons.end(gives);
    gives = undefined;
    return true;
  });
  const { signal } = new AbortController();
  const row = (await findAddon(db, first.id))!;
  await expect(host.addons.throwaway(row, signal)).rejects.toMatchObject({ code: "no_capacity" });
  expect(asked).toBe(1);
  gives = first.id;
  await (await host.addons.throwaway(row, signal))[Symbol.asyncDispose]();

  const second = await make(host, actor, projectId, { kind: "redis" });
  await up(second.id);
  gives = second.id;
  await up((await make(host, actor, projectId, { kind: "redis" })).id);
  expect(gives).toBeUndefined();
});
