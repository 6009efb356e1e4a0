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
import { runMove, move } from "./move.ts";
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

const createNamed = (name: string, more: object = {}) =>
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

/** A volume with a file in it, and without a sandbox. */
async function makeFilledVolume(name = "data") {
  const { id } = await sandboxWith(name);
  const volume = await only();
  await writeFile(join(placeOf(volume.id), "file"), "kept");
  await terminateSandbox(host.app, actor, id);
  return volume;
}

const contentAt = (id: string, region: string) => readFile(join(placeOf(id, region), "file"), "utf8");

test("creates a volume with a name and a size, which occupies no disk before its first use", async () => {
  const volume = await createNamed("data");
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
  await expect(createNamed("data")).rejects.toThrow(refusal("volume_exists", 409));
  const second = await createNamed("more", { size_gb: 100, region: "us-1" });
  expect(await all()).toEqual(expect.arrayContaining([volume, second]));
  expect(existsSync(placeOf(volume.id))).toBe(false);
});

test("lists volumes page by page", async () => {
  for (const name of ["a", "b", "c"]) await createNamed(name);
  const first = await list(host.app, actor, { limit: 2 });
  const rest = await list(host.app, actor, { limit: 2, cursor: first.next_cursor ?? "" });
  expect([...first.items, ...rest.items].map(({ name }) => name).toSorted()).toEqual(["a", "b", "c"]);
  expect(rest.next_cursor).toBeNull();
});

test("creates a missing volume by name with a new sandbox, and keeps the volume after the sandbox's end", async () => {
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

test("does not create a volume for an unknown id", async () => {
  await expect(sandboxWith("vol_doesnotexist")).rejects.toThrow(refusal("volume_not_found", 404));
  expect(await all()).toEqual([]);
});

test("gives a volume to one of twenty concurrent sandboxes, and creates it once", async () => {
  const tries = await Promise.allSettled(Array.from({ length: 20 }, () => sandboxWith("data")));
  const reasons = tries.flatMap((one) => (one.status === "rejected" ? [one.reason] : []));
  expect(reasons).toEqual(Array.from({ length: 19 }, () => refusal("volume_in_use", 409)));
  expect(await all()).toMatchObject([{ name: "data", status: "attached" }]);
});

test("releases a volume when its sandbox ends, also if the removal of its machine takes long", async () => {
  const { id } = await sandboxWith("data");
  host.driver.slow("remove", 300);
  await terminateSandbox(host.app, actor, id);
  const next = await sandboxWith("data");
  host.driver.slow("remove", 0);
  expect(await only()).toMatchObject({ sandbox_id: next.id });
});

test("releases the volume at a failed start, at a deadline, and at the end of a machine", async () => {
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

test("keeps the volume of a paused sandbox, and mounts it again after a resume", async () => {
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

test("lets file calls write to /persist only in a sandbox with a volume", async () => {
  const file = { path: "/persist/file", content: "", mode: 0o644 };
  const without = await createSandbox(host.app, actor, createInput());
  await expect(writeInside(host.app, actor, without.id, file)).rejects.toThrow(refusal("not_permitted", 403));
  const { id } = await sandboxWith("data");
  expect(await writeInside(host.app, actor, id, file)).toMatchObject({ bytes_written: 0 });
});

test("runs a sandbox in its volume's region, and refuses another or unknown region", async () => {
  await createNamed("far", { region: "us-1" });
  const { id } = await sandboxWith("far");
  expect(await getSandbox(host.app, actor, id)).toMatchObject({ region: "us-1" });
  await terminateSandbox(host.app, actor, id);
  await expect(sandboxWith("far", { region: "eu-1" })).rejects.toThrow(/is in us-1; omit the region/);
  await expect(sandboxWith("far", { region: "mars" })).rejects.toThrow(/known: eu-1, us-1/);
  await expect(createNamed("other", { region: "mars" })).rejects.toThrow(refusal("invalid_request", 400));
  await sandboxWith("new", { region: "us-1" });
  expect((await all()).find(({ name }) => name === "new")).toMatchObject({ region: "us-1" });
});

test("never replaces missing bytes by an empty volume", async () => {
  const volume = await makeFilledVolume();
  await rm(placeOf(volume.id), { recursive: true });
  await expect(sandboxWith("data")).rejects.toThrow(refusal("volume_missing", 503));
  expect(existsSync(placeOf(volume.id))).toBe(false);
  expect(await only()).toMatchObject({ status: "available" });
});

test("limits the volumes of a tier, created ahead or at their first use", async () => {
  ({ actor } = await personWithTier(db, "free"));
  for (const name of ["a", "b", "c"]) await createNamed(name);
  const atCap = refusal("plan_limit", 403);
  await expect(createNamed("d")).rejects.toThrow(atCap);
  await expect(sandboxWith("d")).rejects.toThrow(atCap);
  await sandboxWith("c");
  await remove(host.app, actor, "a");
  await createNamed("d");
});

test("starts no machine when the disk is nearly full, and names the disk", async () => {
  host.driver.diskFreeBytes = 0;
  const refused = { code: "no_capacity", message: expect.stringContaining("disk: 0 MiB left") };
  await expect(createSandbox(host.app, actor, createInput())).rejects.toMatchObject(refused);
  await expect(sandboxWith("data")).rejects.toMatchObject(refused);
  host.driver.diskFreeBytes = 1024 ** 4;
  expect(await all()).toEqual([]);
});

test("hides volumes of another workspace, also with the same name", async () => {
  const volume = await makeFilledVolume();
  const { actor: stranger } = await personWithTier(db, "payg");
  const unknown = refusal("volume_not_found", 404);
  await expect(remove(host.app, stranger, volume.id)).rejects.toThrow(unknown);
  await expect(move(host.app, stranger, volume.id, "us-1")).rejects.toThrow(unknown);
  await expect(sandboxWith(volume.id, {}, stranger)).rejects.toThrow(unknown);
  const own = await sandboxWith("data", {}, stranger);
  expect(own.volume_id).not.toBe(volume.id);
  expect(await all(stranger)).toHaveLength(1);
});

describe("delete of a volume", () => {
  test("removes the bytes and the name before it returns", async () => {
    const volume = await makeFilledVolume();
    await remove(host.app, actor, "data");
    expect(existsSync(placeOf(volume.id))).toBe(false);
    expect(await all()).toEqual([]);
    expect(await findVolume(db, volume.id)).toBeUndefined();
    await createNamed("data");
  });

  test("hides a volume after a crash during its delete, and completes the delete at the next start", async () => {
    const volume = await makeFilledVolume();
    onKillPoint((point) => Promise.reject(new Error(point)));
    await expect(remove(host.app, actor, "data")).rejects.toThrow("volume.deleted");
    expect(await all()).toEqual([]);
    await createNamed("data");
    await host.restart();
    expect(existsSync(placeOf(volume.id))).toBe(false);
    expect(await findVolume(db, volume.id)).toBeUndefined();
  });

  test("leaves bytes without a row for the operator", async () => {
    await mkdir(placeOf("vol_ofnobody"), { recursive: true });
    await mkdir(placeOf("not-ours"), { recursive: true });
    await host.restart();
    expect(existsSync(placeOf("vol_ofnobody"))).toBe(true);
    expect(existsSync(placeOf("not-ours"))).toBe(true);
  });
});

describe("move of a volume", () => {
  const job = (volume: string, attempt = 1) =>
    runMove(
      host.app,
      { volume, to: "us-1" },
      { attempt, maxAttempts: 5, signal: new AbortController().signal },
    );
  const listMoveEvents = async () =>
    (await feed(host.app, actor, { limit: 10 })).items.filter(({ event }) => event === "volume.moved");

  test("stores the bytes only in the new region, and emits an event", async () => {
    const volume = await makeFilledVolume();
    expect(await move(host.app, actor, "data", "us-1")).toMatchObject({ status: "moving", region: "eu-1" });
    await job(volume.id);
    expect(await only()).toMatchObject({ status: "available", region: "us-1", used_bytes: 4 });
    expect(await contentAt(volume.id, "us-1")).toBe("kept");
    expect(existsSync(placeOf(volume.id))).toBe(false);
    expect(await listMoveEvents()).toMatchObject([
      {
        sandbox_id: null,
        outcome: "ok",
        detail: { volume_id: volume.id, from: "eu-1", to: "us-1", region: "us-1", bytes: 4 },
      },
    ]);
    const { region } = await sandboxWith("data");
    expect(region).toBe("us-1");
  });

  test("moves a volume that was never used", async () => {
    const volume = await createNamed("data");
    await move(host.app, actor, volume.id, "us-1");
    await job(volume.id);
    expect(await only()).toMatchObject({ region: "us-1", status: "available" });
    await sandboxWith("data");
  });

  test("refuses other operations on a moving volume", async () => {
    await makeFilledVolume();
    await expect(move(host.app, actor, "data", "eu-1")).rejects.toThrow(/is in eu-1 already/);
    await expect(move(host.app, actor, "data", "mars")).rejects.toThrow(refusal("invalid_request", 400));
    await move(host.app, actor, "data", "us-1");
    const moving = refusal("volume_moving", 409);
    await expect(sandboxWith("data")).rejects.toThrow(moving);
    await expect(remove(host.app, actor, "data")).rejects.toThrow(moving);
    await expect(move(host.app, actor, "data", "us-1")).rejects.toThrow(moving);
  });

  test.each(["volume.copied", "volume.moved"])(
    "leaves one complete copy after a crash at %s, and completes the move at the next start",
    async (last) => {
      const volume = await makeFilledVolume();
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
      expect(await listMoveEvents()).toHaveLength(1);
    },
  );

  test("leaves a volume that cannot be moved in its region, and gives the reason in the event", async () => {
    const volume = await makeFilledVolume();
    await move(host.app, actor, "data", "us-1");
    await rm(placeOf(volume.id), { recursive: true });
    await job(volume.id);
    expect(await only()).toMatchObject({ region: "eu-1", status: "available" });
    expect(await listMoveEvents()).toMatchObject([
      {
        outcome: "failed",
        detail: {
          from: "eu-1",
          to: "us-1",
          region: "eu-1",
          reason: expect.stringMatching(/is missing on the host/),
        },
      },
    ]);
  });

  test("retries a failed move, and gives up after the last attempt", async () => {
    const volume = await makeFilledVolume();
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
