import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { DomainError } from "#lib/errors.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../test/harness.ts";
import { read, writeFile } from "../files/files.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { pauseSandbox } from "../sandboxes/lifecycle/pause.ts";
import { getSandbox } from "../sandboxes/sandboxes.ts";
import { SandboxCreate } from "../sandboxes/schema.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { deleteSnapshot, getSnapshot, list, reclaimNamed } from "./snapshots.ts";
import { toSnapshot } from "./schema.ts";
import { takeSnapshot } from "./take.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const { actor } = await personWithTier(db, "payg");
const dayMs = 24 * 3_600_000;

afterEach(async () => {
  onKillPoint(undefined);
  host.driver.slow("restore", 0);
  await db.updateTable("hosts").set({ cpu_class: "fake" }).execute();
  const left = await db.selectFrom("sandboxes").select("id").where("status", "<>", "terminated").execute();
  for (const { id } of left) await terminateSandbox(host.app, owners.get(id) ?? actor, id);
  for (const { id } of (await list(host.app, actor, { limit: 100 })).items)
    await deleteSnapshot(host.app, actor, id);
  await vi.waitUntil(
    async () => JSON.stringify(await there()) === JSON.stringify({ machines: 0, rows: 0, snapshots: [] }),
  );
});

const owners = new Map<string, typeof actor>();

async function create(input: Record<string, unknown> = {}, by = actor) {
  const row = await createSandbox(host.app, by, createInput(input));
  owners.set(row.id, by);
  return row;
}
async function createFrom(snapshot: string, input: Record<string, unknown> = {}, by = actor) {
  const row = await createSandbox(host.app, by, SandboxCreate.parse({ snapshot, ...input }));
  owners.set(row.id, by);
  return row;
}
const take = (id: string, name?: string, by = actor) =>
  takeSnapshot(host.app, by, id, name === undefined ? {} : { name });
const write = (id: string, text: string) =>
  writeFile(host.app, actor, id, {
    path: "/workspace/file",
    content: Buffer.from(text).toString("base64"),
    mode: 0o644,
  });
const contentOf = async (id: string) => {
  const file = await read(host.app, actor, id, "/workspace/file");
  return Buffer.from(file.is_dir ? "" : (file.content ?? ""), "base64").toString();
};

async function there() {
  return {
    machines: (await host.driver.list()).length,
    rows: (await db.selectFrom("machines").select("id").execute()).length,
    snapshots: await readdir(join(host.directory, "snapshots")).catch(() => []),
  };
}

async function refusal(work: Promise<unknown>): Promise<unknown> {
  try {
    return await work;
  } catch (error) {
    return error instanceof DomainError ? { code: error.code, status: error.status, ...error.meta } : error;
  }
}

test("creates any number of sandboxes from a snapshot, by name and by id, also after its sandbox was deleted", async () => {
  const source = await create({ env: { OWN: "source", BOTH: "source" }, network: "off" });
  await write(source.id, "prepared");
  const snapshot = await take(source.id, "base");
  expect(toSnapshot(snapshot)).toEqual({
    id: expect.stringMatching(/^snap_[a-z0-9]{20}$/),
    name: "base",
    sandbox_id: source.id,
    template: "debian-12",
    size: "small",
    cpu: 1,
    memory_mb: 1024,
    region: source.region,
    size_mb: expect.any(Number),
    status: "ready",
    created_at: host.clock.now().toISOString(),
    expires_at: new Date(host.clock.now().getTime() + 30 * dayMs).toISOString(),
  });
  await write(source.id, "changed");
  await terminateSandbox(host.app, actor, source.id);
  const [one, two] = [
    await createFrom("base", { env: { BOTH: "clone" }, timeout_seconds: 99, metadata: { a: "b" } }),
    await createFrom(snapshot.id),
  ];
  expect(one).toEqual(await getSandbox(host.app, actor, one.id));
  expect(one).toMatchObject({
    template: "debian-12",
    network: "restricted",
    timeout_seconds: 99,
    metadata: { a: "b" },
    snapshot_id: snapshot.id,
    forked_from: null,
  });
  for (const { id } of [one, two]) expect(await contentOf(id)).toBe("prepared");
  const spec = (await host.driver.list()).find(({ id }) => id === one.machine_id)?.spec;
  expect(spec).toMatchObject({
    network: "restricted",
    hostname: one.id.replace("_", "-"),
    env: { KONTOR_SANDBOX_ID: one.id, OWN: "source", BOTH: "clone" },
  });
  await expect.poll(there).toMatchObject({ snapshots: [snapshot.id] });
  await deleteSnapshot(host.app, actor, snapshot.id);
  expect(await refusal(createFrom("base"))).toMatchObject({ code: "snapshot_not_found", status: 404 });
  expect(await contentOf(one.id)).toBe("prepared");
  await expect.poll(there).toMatchObject({ machines: 2, snapshots: [] });
});

test("takes a snapshot of a paused sandbox without waking it, and the sandbox resumes unchanged", async () => {
  const { id } = await create();
  await write(id, "kept");
  const paused = await pauseSandbox(host.app, actor, id);
  const snapshot = await take(id);
  expect(new Set((await there()).snapshots)).toEqual(new Set([paused.id, snapshot.id]));
  await terminateSandbox(host.app, actor, id);
  expect(await contentOf((await createFrom(snapshot.id)).id)).toBe("kept");
});

test("keeps a name unique in a workspace, also for concurrent calls, and frees it at the deletion", async () => {
  const { id } = await create();
  const answers = await Promise.all([refusal(take(id, "same")), refusal(take(id, "same"))]);
  expect(
    answers.filter((answer) => (answer as { code?: string }).code === "snapshot_name_taken"),
  ).toHaveLength(1);
  expect(await refusal(take(id, "same"))).toMatchObject({ status: 409 });
  const { items } = await list(host.app, actor, { limit: 10 });
  expect(items.map(({ name }) => name)).toEqual(["same"]);
  await deleteSnapshot(host.app, actor, items[0]?.id ?? "");
  expect(await take(id, "same")).toMatchObject({ name: "same" });
});

test("counts snapshots apart from pauses, and does not stop a sandbox whose snapshot is refused", async () => {
  const free = await personWithTier(db, "free");
  const { id } = await create({}, free.actor);
  for (let n = 0; n < 3; n += 1) await take(id, undefined, free.actor);
  host.driver.fail("checkpoint", new Error("not to be asked for"));
  expect(await refusal(take(id, undefined, free.actor))).toMatchObject({
    code: "named_snapshot_cap_reached",
    status: 409,
    allowed: 3,
  });
  await expect(take(id)).rejects.toMatchObject({ code: "sandbox_not_found" });
  for (const one of (await list(host.app, free.actor, { limit: 10 })).items)
    await deleteSnapshot(host.app, free.actor, one.id);
  await expect(take(id, undefined, free.actor)).rejects.toThrow("not to be asked for");
  expect(await pauseSandbox(host.app, free.actor, id)).toBeDefined();
});

test("hides another workspace's snapshot from reads, deletes and creates, by any name", async () => {
  const { id } = await create();
  const snapshot = await take(id, "mine");
  const stranger = (await personWithTier(db, "payg")).actor;
  const unknown = { code: "snapshot_not_found", status: 404 };
  expect(await refusal(getSnapshot(host.app, stranger, snapshot.id))).toEqual(unknown);
  expect(await refusal(deleteSnapshot(host.app, stranger, snapshot.id))).toEqual(unknown);
  expect(await refusal(createFrom(snapshot.id, {}, stranger))).toEqual(unknown);
  expect(await refusal(createFrom("mine", {}, stranger))).toEqual(unknown);
  expect((await list(host.app, stranger, { limit: 10 })).items).toEqual([]);
});

test("continues the list at its cursor", async () => {
  const { id } = await create();
  const made = [await take(id), await take(id), await take(id)].map((one) => one.id);
  const first = await list(host.app, actor, { limit: 2 });
  const second = await list(host.app, actor, { limit: 2, cursor: first.next_cursor ?? "" });
  expect([...first.items, ...second.items].map((one) => one.id).toSorted()).toEqual(made.toSorted());
  expect(second.next_cursor).toBeNull();
});

test("rejects create fields that the snapshot determines", async () => {
  const { id } = await create();
  const snapshot = await take(id);
  for (const input of [{ size: "medium" }, { region: "elsewhere" }, { volume: "data" }]) {
    expect(await refusal(createFrom(snapshot.id, input))).toMatchObject({
      code: "invalid_request",
      status: 400,
    });
  }
  expect(SandboxCreate.safeParse({ snapshot: "a", template: "b" }).success).toBe(false);
  expect(SandboxCreate.safeParse({}).success).toBe(false);
});

test("reports a damaged or missing snapshot, and does not retry it", async () => {
  const { id } = await create();
  const [broken, gone] = [await take(id), await take(id)];
  host.driver.fail("restore", new RuntimeError("not_restorable", "damaged"));
  expect(await refusal(createFrom(broken.id))).toMatchObject({ code: "snapshot_damaged", status: 409 });
  host.driver.fail("restore", new Error("not to be asked for"));
  expect(await refusal(createFrom(broken.id))).toMatchObject({ code: "snapshot_damaged" });
  expect(await getSnapshot(host.app, actor, broken.id)).toMatchObject({ damaged: true });
  await rm(join(host.directory, "snapshots", gone.id), { recursive: true });
  expect(await refusal(createFrom(gone.id))).toMatchObject({ code: "snapshot_damaged" });
  expect(toSnapshot(await getSnapshot(host.app, actor, gone.id))).toMatchObject({ status: "damaged" });
});

test("marks a snapshot as damaged when its bytes are missing at the server's start, and keeps its sandbox running", async () => {
  const { id } = await create();
  const snapshot = await take(id);
  await rm(join(host.directory, "snapshots", snapshot.id), { recursive: true });
  await host.restart();
  expect(await getSnapshot(host.app, actor, snapshot.id)).toMatchObject({ damaged: true });
  expect(await getSandbox(host.app, actor, id)).toMatchObject({ status: "running" });
});

test("reports the required processors of a snapshot, and restores it once the host has them", async () => {
  const { id } = await create();
  const snapshot = await take(id);
  await db.updateTable("hosts").set({ cpu_class: "another" }).execute();
  expect(await refusal(createFrom(snapshot.id))).toMatchObject({
    code: "snapshot_incompatible",
    status: 409,
    needs: { runtime_build: "fake", cpu_class: "fake" },
  });
  await db.updateTable("hosts").set({ cpu_class: "fake" }).execute();
  expect(await createFrom(snapshot.id)).toMatchObject({ status: "running" });
});

test("keeps a snapshot for the tier's retention after its last use", async () => {
  const { id } = await create();
  const [used, unused] = [await take(id), await take(id)];
  host.clock.advance(20 * dayMs);
  await createFrom(used.id);
  host.clock.advance(11 * dayMs);
  await reclaimNamed(host.app);
  expect((await list(host.app, actor, { limit: 10 })).items.map((one) => one.id)).toEqual([used.id]);
  expect(await refusal(getSnapshot(host.app, actor, unused.id))).toMatchObject({ status: 404 });
  await expect.poll(async () => (await there()).snapshots).toEqual([used.id]);
});

test("does not affect a sandbox that is being created from a snapshot when the snapshot is deleted", async () => {
  const { id } = await create();
  await write(id, "kept");
  const snapshot = await take(id);
  host.driver.slow("restore", 100);
  const creating = createFrom(snapshot.id);
  await expect.poll(async () => (await there()).rows).toBe(2);
  await deleteSnapshot(host.app, actor, snapshot.id);
  expect(await contentOf((await creating).id)).toBe("kept");
  await expect.poll(async () => (await there()).snapshots).toEqual([]);
});

test.each(["snapshot.written", "snapshot.committed"])(
  "leaves the sandbox running, and a complete snapshot or none, after a crash at %s",
  async (point) => {
    const { id } = await create();
    await write(id, "kept");
    const here = Promise.withResolvers<void>();
    onKillPoint(async (at) => {
      if (at !== point) return;
      here.resolve();
      await new Promise(() => {});
    });
    void take(id, "one");
    await here.promise;
    onKillPoint(undefined);
    await host.restart();
    const { items } = await list(host.app, actor, { limit: 10 });
    expect(items).toHaveLength(point === "snapshot.committed" ? 1 : 0);
    await expect.poll(there).toEqual({ machines: 1, rows: 1, snapshots: items.map((one) => one.id) });
    expect(await contentOf(id)).toBe("kept");
    for (const snapshot of items) expect(await contentOf((await createFrom(snapshot.id)).id)).toBe("kept");
  },
);

test("lists snapshots by sandbox, name, status and time, oldest first", async () => {
  const [one, other] = [
    await createSandbox(host.app, actor, createInput()),
    await createSandbox(host.app, actor, createInput()),
  ];
  const first = await takeSnapshot(host.app, actor, one.id, { name: "filter-first" });
  const second = await takeSnapshot(host.app, actor, other.id, {});
  const findNames = async (query: object) =>
    (await list(host.app, actor, { limit: 10, ...query })).items.map(({ id }) => id);
  expect(await findNames({ sandbox_id: other.id })).toEqual([second.id]);
  expect(await findNames({ name: "filter-first" })).toEqual([first.id]);
  const ours = async (query: object) =>
    (await findNames(query)).filter((id) => id === first.id || id === second.id);
  expect(await ours({ template: "debian-12", status: ["ready"] })).toHaveLength(2);
  expect(await ours({ status: ["damaged"] })).toEqual([]);
  expect(await ours({ status: ["damaged", "ready"] })).toHaveLength(2);
  expect(await ours({ created_before: "1970-01-01T00:00:01Z" })).toEqual([]);
  expect(await ours({ order: "oldest" })).toEqual((await ours({})).toReversed());
});
