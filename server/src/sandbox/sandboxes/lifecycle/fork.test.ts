import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { DomainError } from "#lib/errors.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../../test/harness.ts";
import { read, writeFile } from "#sandbox/files/files.ts";
import { createInput, personWithTier, testHost } from "#sandbox/testing/sandbox-app.ts";
import { createSandbox } from "./create.ts";
import { expireSandboxes } from "./expire.ts";
import { forkSandbox } from "./fork.ts";
import { list } from "../list.ts";
import { pauseSandbox } from "./pause.ts";
import { resumeSandbox } from "./resume.ts";
import { getSandbox } from "../sandboxes.ts";
import { SandboxFork, toSandbox } from "../schema.ts";
import { terminateSandbox } from "./terminate.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const { actor, workspace } = await personWithTier(db, "payg");

afterEach(async () => {
  onKillPoint(undefined);
  host.driver.slow("restore", 0);
  const left = await db.selectFrom("sandboxes").select("id").where("status", "<>", "terminated").execute();
  for (const { id } of left) await terminateSandbox(host.app, owners.get(id) ?? actor, id);
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
const fork = (id: string, input: Record<string, unknown> = {}, by = actor) =>
  forkSandbox(host.app, by, id, SandboxFork.parse(input));
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
const idsOf = (rows: readonly { id: string }[]) => rows.map(({ id }) => id);
const listIds = async () => idsOf((await list(host.app, actor, { status: ["running"], limit: 100 })).items);

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

test("gives clones the source's files and settings, and their own names, tokens, environments and lifetimes", async () => {
  const source = await create({
    network: "open",
    timeout_seconds: 100,
    metadata: { a: "b" },
    preview_auth: true,
    env: { OWN: "source", BOTH: "source" },
  });
  await write(source.id, "common");
  host.clock.advance(50_000);
  const clones = await fork(source.id, { count: 3, env: { BOTH: "clone" } });
  expect(clones).toHaveLength(3);
  const specs = new Map((await host.driver.list()).map(({ id, spec }) => [id, spec]));
  const tokens = new Set([toSandbox(host.app, source).preview_auth_token]);
  for (const clone of clones) {
    const { id } = clone;
    expect(clone).toEqual(await getSandbox(host.app, actor, id));
    expect(clone).toMatchObject({
      status: "running",
      network: "open",
      metadata: { a: "b" },
      forked_from: source.id,
      snapshot_id: null,
      created_at: host.clock.now(),
      expires_at: new Date(host.clock.now().getTime() + 100_000),
    });
    tokens.add(toSandbox(host.app, clone).preview_auth_token);
    expect(await contentOf(id)).toBe("common");
    await write(id, id);
    expect(specs.get(clone.machine_id ?? "")).toMatchObject({
      network: "open",
      hostname: id.replace("_", "-"),
      env: { KONTOR_SANDBOX_ID: id, OWN: "source", BOTH: "clone" },
    });
  }
  expect(tokens.size).toBe(4);
  expect(await contentOf(source.id)).toBe("common");
  expect(await getSandbox(host.app, actor, source.id)).toEqual(source);
  for (const { id } of clones) expect(await contentOf(id)).toBe(id);
  await expect.poll(there).toEqual({ machines: 4, rows: 4, snapshots: [] });
});

test("prefers settings of a fork request to those of the source", async () => {
  const { id } = await create({ preview_auth: true, network: "restricted" });
  const input = { timeout_seconds: 77, on_timeout: "pause", auto_resume: true, preview_auth: false };
  const [clone] = await fork(id, { ...input, metadata: { is: "clone" } });
  expect(clone).toMatchObject({
    timeout_seconds: 77,
    on_timeout: "pause",
    auto_resume: true,
    preview_token_sealed: null,
    metadata: { is: "clone" },
  });
  expect(await fork(clone?.id ?? "")).toMatchObject([{ forked_from: clone?.id, timeout_seconds: 77 }]);
});

test("forks a paused sandbox from its snapshot and leaves it paused", async () => {
  const { id } = await create();
  await write(id, "kept");
  const snapshot = await pauseSandbox(host.app, actor, id);
  const clones = await fork(id, { count: 2 });
  for (const clone of clones) expect(await contentOf(clone.id)).toBe("kept");
  expect(await getSandbox(host.app, actor, id)).toMatchObject({ status: "paused", transition: null });
  await expect.poll(there).toEqual({ machines: 2, rows: 2, snapshots: [snapshot.id] });
  await resumeSandbox(host.app, actor, id);
  expect(await contentOf(id)).toBe("kept");
});

test("creates clones that do not depend on changes of the source during the fork", async () => {
  const { id } = await create();
  await write(id, "kept");
  await pauseSandbox(host.app, actor, id);
  host.driver.slow("restore", 100);
  const forking = fork(id, { count: 3 });
  await expect.poll(there).toMatchObject({ rows: 3 });
  await terminateSandbox(host.app, actor, id);
  for (const clone of await forking) expect(await contentOf(clone.id)).toBe("kept");
});

test("names the source of a clone in events and records", async () => {
  const { id } = await create();
  const [clone] = await fork(id);
  const events = await db
    .selectFrom("sandbox_events")
    .select(["event", "detail", "summary"])
    .where("sandbox_id", "=", clone?.id ?? "")
    .execute();
  expect(events).toMatchObject([
    { event: "sandbox.created", detail: { forked_from: id, by: "caller" }, summary: `Forked from ${id}.` },
  ]);
  expect(clone && toSandbox(host.app, clone)).toMatchObject({ forked_from: id });
});

test("refuses to fork a terminated sandbox, and hides a sandbox of another workspace", async () => {
  const { id } = await create();
  const stranger = await personWithTier(db, "payg");
  expect(await refusal(fork(id, {}, stranger.actor))).toMatchObject({
    code: "sandbox_not_found",
    status: 404,
  });
  await terminateSandbox(host.app, actor, id);
  expect(await refusal(fork(id))).toMatchObject({ code: "sandbox_terminated", status: 409 });
});

test("counts clones for the tier's cap, also while they are made and in concurrent forks", async () => {
  const free = await personWithTier(db, "free");
  const source = await create({}, free.actor);
  const cap = host.app.config.maxSandboxesFree;
  expect(await refusal(fork(source.id, { count: cap }, free.actor))).toMatchObject({
    code: "plan_limit",
    limit: "max_concurrent_sandboxes",
  });
  host.driver.slow("restore", 50);
  const forks = await Promise.all(
    Array.from({ length: cap + 1 }, () => refusal(fork(source.id, {}, free.actor))),
  );
  const made = forks.flatMap((answer) => (Array.isArray(answer) ? (answer as { id: string }[]) : []));
  for (const { id } of made) owners.set(id, free.actor);
  expect(made).toHaveLength(cap - 1);
  expect(await refusal(fork(source.id, { timeout_seconds: 1801 }, free.actor))).toMatchObject({
    code: "timeout_too_long",
  });
});

test("creates nothing when the host lacks capacity for a fork", async () => {
  const { id } = await create();
  const before = await there();
  host.app.machines.capacity.machines = 3;
  expect(await refusal(fork(id, { count: 3 }))).toMatchObject({ code: "no_capacity" });
  host.app.machines.capacity.machines = 100;
  expect(await there()).toEqual(before);
  expect(await listIds()).toEqual([id]);
});

test("shows no clone before all clones run; a failure of one clone removes all, and the source continues", async () => {
  const { id } = await create();
  await write(id, "kept");
  host.driver.slow("restore", 50);
  host.driver.fail("restore", new RuntimeError("failed", "no luck"));
  const forking = refusal(fork(id, { count: 4 }));
  await expect.poll(there).toMatchObject({ rows: 5 });
  expect(await listIds()).toEqual([id]);
  host.clock.advance(1000);
  await expireSandboxes(host.app);
  expect(await forking).toMatchObject({ code: "restore_failed", status: 503 });
  await expect.poll(there).toEqual({ machines: 1, rows: 1, snapshots: [] });
  const rows = await db.selectFrom("sandboxes").select("id").where("forked_from", "=", id).execute();
  expect(rows).toEqual([]);
  expect(await contentOf(id)).toBe("kept");
});

test("reports why a source cannot be captured, and the source continues", async () => {
  const { id } = await create();
  const found = { pid: 7, process: "python3", file: "/persist/x" };
  host.driver.fail("checkpoint", new RuntimeError("not_checkpointable", "x is open", { details: found }));
  expect(await refusal(fork(id, { count: 2 }))).toMatchObject({ code: "not_checkpointable", ...found });
  await expect.poll(there).toEqual({ machines: 1, rows: 1, snapshots: [] });
  expect(await listIds()).toEqual([id]);
});

test("removes all clones when one clone ends before the others run", async () => {
  const { id } = await create();
  const forking = Promise.withResolvers<void>();
  onKillPoint(async (point) => {
    if (point !== "clone.restored") return;
    const clone = (await host.driver.list()).find(({ spec }) => spec?.hostname !== id.replace("_", "-"));
    host.driver.end(clone?.id ?? "", "out_of_memory");
    await vi.waitUntil(async () => (await host.driver.list()).every((machine) => machine.id !== clone?.id));
    forking.resolve();
  });
  const answer = refusal(fork(id, { count: 3 }));
  await forking.promise;
  expect(await answer).toMatchObject({ code: "restore_failed" });
  await expect.poll(there).toEqual({ machines: 1, rows: 1, snapshots: [] });
});

test("reports that a snapshot needs another runtime build or other processors", async () => {
  const { id } = await create();
  await pauseSandbox(host.app, actor, id);
  const { cpu_class } = await db.selectFrom("hosts").select("cpu_class").executeTakeFirstOrThrow();
  await db.updateTable("hosts").set({ cpu_class: "another" }).execute();
  expect(await refusal(fork(id))).toMatchObject({ code: "snapshot_incompatible", needs: { cpu_class } });
  await db.updateTable("hosts").set({ cpu_class }).execute();
  expect(await fork(id)).toHaveLength(1);
});

test.each(["clone.reserved", "clone.written", "clone.restored", "clone.committed"])(
  "leaves the source unchanged, and all clones or none, after a crash at %s",
  async (point) => {
    const { id } = await create();
    await write(id, "kept");
    const here = Promise.withResolvers<void>();
    onKillPoint(async (at) => {
      if (at !== point) return;
      here.resolve();
      // Simulates the end of the process: nothing after this point happens.
      await new Promise(() => {});
    });
    void fork(id, { count: 2 });
    await here.promise;
    onKillPoint(undefined);
    await host.restart();
    const clones = (await listIds()).filter((one) => one !== id);
    expect(clones).toHaveLength(point === "clone.committed" ? 2 : 0);
    await expect.poll(there).toEqual({ machines: 1 + clones.length, rows: 1 + clones.length, snapshots: [] });
    for (const one of [id, ...clones]) expect(await contentOf(one)).toBe("kept");
    const rows = await db.selectFrom("sandboxes").select("id").where("reserved", "=", true).execute();
    expect(rows).toEqual([]);
    expect(await fork(id)).toMatchObject([{ workspace_id: workspace.id }]);
  },
);
