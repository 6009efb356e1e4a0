import { existsSync, readdirSync } from "node:fs";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import type { Actor } from "#accounts/actor.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../test/harness.ts";
import { feed } from "../events/feed.ts";
import { writeFile as writeInside } from "../files/files.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { expireSandboxes } from "../sandboxes/lifecycle/expire.ts";
import { pauseSandbox } from "../sandboxes/lifecycle/pause.ts";
import { resumeSandbox } from "../sandboxes/lifecycle/resume.ts";
import { getSandbox } from "../sandboxes/sandboxes.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { createInput, personWithTier, type TestHost, testHost } from "../testing/sandbox-app.ts";
import { carryOut, move } from "./move.ts";
import { VolumeCreate } from "./schema.ts";
import { findVolume } from "./store.ts";
import { create, list, remove } from "./volumes.ts";

const { db } = await testDatabase();
let host: TestHost;
let actor: Actor;

beforeAll(async () => {
  host = await testHost(db, { config: { regions: "eu-1=Here,us-1=There" } });
});
beforeEach(async () => {
  ({ actor } = await personWithTier(db, "payg"));
});
afterEach(() => onKillPoint(undefined));

const named = (name: string, more: object = {}) =>
  create(host.app, actor, VolumeCreate.parse({ name, ...more }));
const sandboxWith = (volume: string, more: object = {}, by = actor) =>
  createSandbox(host.app, by, createInput({ volume, ...more }));
const all = async (by = actor) => (await list(host.app, by, { limit: 50 })).items;
const only = async () => {
  const [volume] = await all();
  if (!volume) throw new Error("there is a volume");
  return volume;
};
const placeOf = (id: string, region = "eu-1") => join(host.directory, "volumes", region, id);
const refusal = (code: string, status: number) => expect.objectContaining({ code, status });

/** A volume with a file in it, which no sandbox has. */
async function filled(name = "data") {
  const { id } = await sandboxWith(name);
  const volume = await only();
  await writeFile(join(placeOf(volume.id), "file"), "kept");
  await terminateSandbox(host.app, actor, id);
  return volume;
}

const contentAt = (id: string, region: string) => readFile(join(placeOf(id, region), "file"), "utf8");

test("a volume is named, sized and listed, and takes no room before its first use", async () => {
  const volume = await named("data");
  expect(volume).toEqual({
    id: expect.stringMatching(/^vol_[a-z0-9]{20}$/),
    name: "data",
    size_gb: 10,
    region: "eu-1",
    status: "available",
    sandbox_id: null,
    used_bytes: 0,
    created_at: expect.any(String),
  });
  await expect(named("data")).rejects.toThrow(refusal("volume_exists", 409));
  const second = await named("more", { size_gb: 100, region: "us-1" });
  expect(await all()).toEqual(expect.arrayContaining([volume, second]));
  expect(existsSync(placeOf(volume.id))).toBe(false);
});

test("a list is read page by page", async () => {
  for (const name of ["a", "b", "c"]) await named(name);
  const first = await list(host.app, actor, { limit: 2 });
  const rest = await list(host.app, actor, { limit: 2, cursor: first.next_cursor ?? "" });
  expect([...first.items, ...rest.items].map(({ name }) => name).toSorted()).toEqual(["a", "b", "c"]);
  expect(rest.next_cursor).toBeNull();
});

test("one that is named in a create and not there is made, and kept when the sandbox ends", async () => {
  const sandbox = await sandboxWith("data");
  const volume = await only();
  expect(volume).toMatchObject({ name: "data", size_gb: 10, status: "attached", sandbox_id: sandbox.id });
  expect(sandbox.volume_id).toBe(volume.id);
  await writeFile(join(placeOf(volume.id), "file"), "kept");
  await terminateSandbox(host.app, actor, sandbox.id);
  expect(await only()).toMatchObject({ status: "available", sandbox_id: null, used_bytes: 4 });
  const again = await sandboxWith(volume.id);
  expect(await contentAt(volume.id, "eu-1")).toBe("kept");
  expect(await only()).toMatchObject({ sandbox_id: again.id });
});

test("an id that is not there is not made", async () => {
  await expect(sandboxWith("vol_doesnotexist")).rejects.toThrow(refusal("volume_not_found", 404));
  expect(await all()).toEqual([]);
});

test("of twenty sandboxes that want a volume at once one gets it, and the volume is made once", async () => {
  const tries = await Promise.allSettled(Array.from({ length: 20 }, () => sandboxWith("data")));
  const reasons = tries.flatMap((one) => (one.status === "rejected" ? [one.reason] : []));
  expect(reasons).toEqual(Array.from({ length: 19 }, () => refusal("volume_in_use", 409)));
  expect(await all()).toMatchObject([{ name: "data", status: "attached" }]);
});

test("a volume is free once its sandbox ended, also where its machine takes its time to go", async () => {
  const { id } = await sandboxWith("data");
  host.driver.slow("remove", 300);
  await terminateSandbox(host.app, actor, id);
  const next = await sandboxWith("data");
  host.driver.slow("remove", 0);
  expect(await only()).toMatchObject({ sandbox_id: next.id });
});

test("a start that fails, a deadline, and a machine that ends let go of the volume", async () => {
  host.driver.fail("create", new RuntimeError("failed", "no"));
  await expect(sandboxWith("data")).rejects.toThrow(refusal("start_failed", 503));
  expect(await only()).toMatchObject({ status: "available" });

  await sandboxWith("data", { timeout_seconds: 10 });
  host.clock.advance(11_000);
  await expireSandboxes(host.app);
  expect(await only()).toMatchObject({ status: "available" });

  const { machine_id } = await sandboxWith("data");
  host.driver.end(machine_id ?? "", "out_of_memory");
  await expect.poll(async () => (await only()).status).toBe("available");
});

test("a paused sandbox keeps its volume and has it again when it is resumed", async () => {
  const { id } = await sandboxWith("data");
  const volume = await only();
  await writeInside(host.app, actor, id, { path: "/persist/file", content: "a2VwdA==", mode: 0o644 });
  await pauseSandbox(host.app, actor, id);
  expect(await only()).toMatchObject({ status: "attached", sandbox_id: id });
  await expect(sandboxWith("data")).rejects.toThrow(refusal("volume_in_use", 409));
  await expect(remove(host.app, actor, "data")).rejects.toThrow(refusal("volume_in_use", 409));
  await expect(move(host.app, actor, "data", "us-1")).rejects.toThrow(refusal("volume_in_use", 409));
  await host.restart();
  await resumeSandbox(host.app, actor, id);
  await writeInside(host.app, actor, id, { path: "/persist/more", content: "bW9yZQ==", mode: 0o644 });
  expect(readdirSync(placeOf(volume.id)).toSorted()).toEqual(["file", "more"]);
  await pauseSandbox(host.app, actor, id);
  await terminateSandbox(host.app, actor, id);
  expect(await only()).toMatchObject({ status: "available" });
});

test("/persist is written to through the file calls where there is a volume, and nowhere else", async () => {
  const file = { path: "/persist/file", content: "", mode: 0o644 };
  const without = await createSandbox(host.app, actor, createInput());
  await expect(writeInside(host.app, actor, without.id, file)).rejects.toThrow(refusal("not_permitted", 403));
  const { id } = await sandboxWith("data");
  expect(await writeInside(host.app, actor, id, file)).toMatchObject({ bytes_written: 0 });
});

test("the region follows the volume; another one, and one nobody knows, is refused", async () => {
  await named("far", { region: "us-1" });
  const { id } = await sandboxWith("far");
  expect(await getSandbox(host.app, actor, id)).toMatchObject({ region: "us-1" });
  await terminateSandbox(host.app, actor, id);
  await expect(sandboxWith("far", { region: "eu-1" })).rejects.toThrow(/is in us-1; omit the region/);
  await expect(sandboxWith("far", { region: "mars" })).rejects.toThrow(/known: eu-1, us-1/);
  await expect(named("other", { region: "mars" })).rejects.toThrow(refusal("invalid_request", 400));
  await sandboxWith("new", { region: "us-1" });
  expect((await all()).find(({ name }) => name === "new")).toMatchObject({ region: "us-1" });
});

test("bytes that should be there and are not are never replaced by an empty volume", async () => {
  const volume = await filled();
  await rm(placeOf(volume.id), { recursive: true });
  await expect(sandboxWith("data")).rejects.toThrow(refusal("volume_missing", 503));
  expect(existsSync(placeOf(volume.id))).toBe(false);
  expect(await only()).toMatchObject({ status: "available" });
});

test("a tier has as many volumes as it allows, made ahead or at their first use", async () => {
  ({ actor } = await personWithTier(db, "free"));
  for (const name of ["a", "b", "c"]) await named(name);
  const atCap = refusal("plan_limit", 403);
  await expect(named("d")).rejects.toThrow(atCap);
  await expect(sandboxWith("d")).rejects.toThrow(atCap);
  await sandboxWith("c");
  await remove(host.app, actor, "a");
  await named("d");
});

test("where the disk is nearly full no machine is started, and the disk is named", async () => {
  host.driver.diskFreeBytes = 0;
  const refused = { code: "no_capacity", message: expect.stringContaining("disk: 0 MiB left") };
  await expect(createSandbox(host.app, actor, createInput())).rejects.toMatchObject(refused);
  await expect(sandboxWith("data")).rejects.toMatchObject(refused);
  host.driver.diskFreeBytes = 1024 ** 4;
  expect(await all()).toEqual([]);
});

test("another workspace has volumes of the same name, and none of these", async () => {
  const volume = await filled();
  const { actor: stranger } = await personWithTier(db, "payg");
  const unknown = refusal("volume_not_found", 404);
  await expect(remove(host.app, stranger, volume.id)).rejects.toThrow(unknown);
  await expect(move(host.app, stranger, volume.id, "us-1")).rejects.toThrow(unknown);
  await expect(sandboxWith(volume.id, {}, stranger)).rejects.toThrow(unknown);
  const own = await sandboxWith("data", {}, stranger);
  expect(own.volume_id).not.toBe(volume.id);
  expect(await all(stranger)).toHaveLength(1);
});

describe("deleting", () => {
  test("the bytes are gone when it is said, and the name is free", async () => {
    const volume = await filled();
    await remove(host.app, actor, "data");
    expect(existsSync(placeOf(volume.id))).toBe(false);
    expect(await all()).toEqual([]);
    expect(await findVolume(db, volume.id)).toBeUndefined();
    await named("data");
  });

  test("a server that ends in the midst has nobody see it again, and finishes it at its next start", async () => {
    const volume = await filled();
    onKillPoint((point) => Promise.reject(new Error(point)));
    await expect(remove(host.app, actor, "data")).rejects.toThrow("volume.deleted");
    expect(await all()).toEqual([]);
    await named("data");
    await host.restart();
    expect(existsSync(placeOf(volume.id))).toBe(false);
    expect(await findVolume(db, volume.id)).toBeUndefined();
  });

  test("bytes that no row speaks of are left to a person", async () => {
    await mkdir(placeOf("vol_ofnobody"), { recursive: true });
    await mkdir(placeOf("not-ours"), { recursive: true });
    await host.restart();
    expect(existsSync(placeOf("vol_ofnobody"))).toBe(true);
    expect(existsSync(placeOf("not-ours"))).toBe(true);
  });
});

describe("moving", () => {
  const job = (volume: string, attempt = 1) =>
    carryOut(
      host.app,
      { volume, to: "us-1" },
      { attempt, maxAttempts: 5, signal: new AbortController().signal },
    );
  const moved = async () =>
    (await feed(host.app, actor, { limit: 10 })).items.filter(({ event }) => event === "volume.moved");

  test("the bytes are at the new place and at no other, and the event says so", async () => {
    const volume = await filled();
    expect(await move(host.app, actor, "data", "us-1")).toMatchObject({ status: "moving", region: "eu-1" });
    await job(volume.id);
    expect(await only()).toMatchObject({ status: "available", region: "us-1", used_bytes: 4 });
    expect(await contentAt(volume.id, "us-1")).toBe("kept");
    expect(existsSync(placeOf(volume.id))).toBe(false);
    expect(await moved()).toMatchObject([
      {
        sandbox_id: null,
        outcome: "ok",
        detail: { volume_id: volume.id, from: "eu-1", to: "us-1", region: "us-1", bytes: 4 },
      },
    ]);
    const { region } = await sandboxWith("data");
    expect(region).toBe("us-1");
  });

  test("a volume that was never used moves as well", async () => {
    const volume = await named("data");
    await move(host.app, actor, volume.id, "us-1");
    await job(volume.id);
    expect(await only()).toMatchObject({ region: "us-1", status: "available" });
    await sandboxWith("data");
  });

  test("while it moves nobody else does anything with it", async () => {
    await filled();
    await expect(move(host.app, actor, "data", "eu-1")).rejects.toThrow(/is in eu-1 already/);
    await expect(move(host.app, actor, "data", "mars")).rejects.toThrow(refusal("invalid_request", 400));
    await move(host.app, actor, "data", "us-1");
    const moving = refusal("volume_moving", 409);
    await expect(sandboxWith("data")).rejects.toThrow(moving);
    await expect(remove(host.app, actor, "data")).rejects.toThrow(moving);
    await expect(move(host.app, actor, "data", "us-1")).rejects.toThrow(moving);
  });

  test.each(["volume.copied", "volume.moved"])(
    "a server that ends at %s leaves it whole at one place, and the next start ends the move",
    async (last) => {
      const volume = await filled();
      await move(host.app, actor, "data", "us-1");
      onKillPoint(async (point) => {
        if (point === last) throw new Error(`ended at ${point}`);
      });
      await expect(job(volume.id)).rejects.toThrow(last);
      onKillPoint(undefined);
      await mkdir(placeOf(`${volume.id}.unfinished`, "us-1"), { recursive: true });
      await host.restart();
      const { region, status } = await only();
      expect([region, status]).toEqual(last === "volume.copied" ? ["eu-1", "moving"] : ["us-1", "available"]);
      expect(await contentAt(volume.id, region)).toBe("kept");
      for (const [id, place] of [
        [volume.id, region === "eu-1" ? "us-1" : "eu-1"],
        [`${volume.id}.unfinished`, "us-1"],
      ]) {
        expect(existsSync(placeOf(id ?? "", place))).toBe(false);
      }
      await job(volume.id);
      expect(await only()).toMatchObject({ region: "us-1", status: "available" });
      expect(await contentAt(volume.id, "us-1")).toBe("kept");
      expect(await moved()).toHaveLength(1);
    },
  );

  test("one that cannot be moved stays where it is, and the event says why", async () => {
    const volume = await filled();
    await move(host.app, actor, "data", "us-1");
    await rm(placeOf(volume.id), { recursive: true });
    await job(volume.id);
    expect(await only()).toMatchObject({ region: "eu-1", status: "available" });
    expect(await moved()).toMatchObject([
      {
        outcome: "failed",
        detail: {
          from: "eu-1",
          to: "us-1",
          region: "eu-1",
          reason: expect.stringMatching(/not at its place/),
        },
      },
    ]);
  });

  test("what fails is tried again, and given up after the last attempt", async () => {
    const volume = await filled();
    await move(host.app, actor, "data", "us-1");
    onKillPoint(() => Promise.reject(new Error("again")));
    await expect(job(volume.id, 4)).rejects.toThrow("again");
    expect(await only()).toMatchObject({ status: "moving" });
    await job(volume.id, 5);
    expect(await only()).toMatchObject({ region: "eu-1", status: "available" });
    expect(await contentAt(volume.id, "eu-1")).toBe("kept");
    expect(existsSync(placeOf(volume.id, "us-1"))).toBe(false);
  });
});
