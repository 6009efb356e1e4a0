import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { DomainError } from "#lib/errors.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../../test/harness.ts";
import { runBuffered } from "#sandbox/exec/exec.ts";
import { read, writeFile } from "#sandbox/files/files.ts";
import { createInput, personWithTier, testHost } from "#sandbox/testing/sandbox-app.ts";
import { createSandbox } from "./create.ts";
import { expireSandboxes, reclaimSnapshots } from "./expire.ts";
import { keepAlive } from "./keep-alive.ts";
import { metrics } from "../metrics.ts";
import { endStaleMoves } from "./moves.ts";
import { pauseSandbox } from "./pause.ts";
import { resumeSandbox } from "./resume.ts";
import { getSandbox } from "../sandboxes.ts";
import { toPauseRecord } from "../schema.ts";
import { terminateSandbox } from "./terminate.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const paid = await personWithTier(db, "payg");
const { actor } = paid;
const dayMs = 24 * 3_600_000;

afterEach(async () => {
  onKillPoint(undefined);
  const left = await db.selectFrom("sandboxes").select("id").where("status", "<>", "terminated").execute();
  for (const { id } of left) await terminateSandbox(host.app, actorOf(id), id);
  await vi.waitUntil(async () => JSON.stringify(await leftovers()) === JSON.stringify(nothing));
});

const nothing = { machines: 0, rows: 0, snapshots: [] };
const owners = new Map<string, typeof actor>();
const actorOf = (id: string) => owners.get(id) ?? actor;

async function create(input: Record<string, unknown> = {}, by = actor) {
  const row = await createSandbox(host.app, by, createInput(input));
  owners.set(row.id, by);
  return row;
}
const get = (id: string) => getSandbox(host.app, actorOf(id), id);
const pause = (id: string) => pauseSandbox(host.app, actorOf(id), id);
const resume = (id: string) => resumeSandbox(host.app, actorOf(id), id);
const write = (id: string, path: string, text: string) =>
  writeFile(host.app, actorOf(id), id, {
    path,
    content: Buffer.from(text).toString("base64"),
    mode: 0o644,
  });
const contentOf = async (id: string, path: string) => {
  const file = await read(host.app, actorOf(id), id, path);
  return Buffer.from(file.is_dir ? "" : (file.content ?? ""), "base64").toString();
};

async function leftovers() {
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
    return error instanceof DomainError ? { code: error.code, status: error.status } : error;
  }
}

test("replaces a paused sandbox's machine by a snapshot, and restores its files from the snapshot on resume", async () => {
  const { id } = await create({ timeout_seconds: 100, metadata: { a: "b" } });
  await write(id, "/workspace/kept", "kept");
  host.clock.advance(50_000);
  const snapshot = await pause(id);
  expect(toPauseRecord(snapshot)).toEqual({
    sandbox_id: id,
    snapshot_id: expect.stringMatching(/^snap_[a-z0-9]+$/),
    status: "paused",
    snapshot_size_mb: expect.any(Number),
    created_at: host.clock.now().toISOString(),
    paused_expires_at: new Date(host.clock.now().getTime() + 30 * dayMs).toISOString(),
  });
  expect(await get(id)).toMatchObject({ status: "paused", transition: null, machine_id: null });
  await expect.poll(leftovers).toEqual({ machines: 0, rows: 0, snapshots: [snapshot.id] });
  host.clock.advance(dayMs);
  const resumed = await resume(id);
  expect(resumed).toMatchObject({ status: "running", transition: null, machine_id: expect.any(String) });
  expect(resumed.expires_at).toEqual(new Date(host.clock.now().getTime() + 100_000));
  expect(await contentOf(id, "/workspace/kept")).toBe("kept");
  await expect.poll(leftovers).toMatchObject({ machines: 1, rows: 1, snapshots: [] });
  const spec = (await host.driver.list())[0]?.spec;
  expect(spec).toMatchObject({ hostname: id.replace("_", "-"), env: { KONTOR_SANDBOX_ID: id } });
});

test("refuses calls that a paused sandbox cannot serve; its metrics are null, and its lifetime does not change", async () => {
  const { id } = await create();
  host.clock.advance(10_000);
  await pause(id);
  host.clock.advance(10_000);
  expect(await refusal(pause(id))).toMatchObject({ code: "sandbox_paused", status: 409 });
  expect(await refusal(keepAlive(host.app, actor, id, 60))).toMatchObject({ code: "sandbox_paused" });
  expect(await refusal(contentOf(id, "/workspace"))).toMatchObject({ code: "sandbox_paused" });
  expect(await metrics(host.app, actor, id, undefined)).toMatchObject({
    sandbox_status: "paused",
    cpu: { usage_cores: null, usage_percent: null },
    memory: { usage_bytes: null, usage_percent: null },
    lifetime: { gb_seconds: 10 },
    samples: [],
  });
});

test("changes nothing on a resume of a running sandbox", async () => {
  const before = await create();
  host.clock.advance(1000);
  expect(await resume(before.id)).toEqual(before);
});

test("wakes a sandbox with auto_resume once for concurrent file and exec calls", async () => {
  const { id } = await create({ auto_resume: true });
  await write(id, "/workspace/kept", "kept");
  await pause(id);
  host.driver.slow("restore", 50);
  const answers = await Promise.all(Array.from({ length: 20 }, () => contentOf(id, "/workspace/kept")));
  expect(new Set(answers)).toEqual(new Set(["kept"]));
  expect(await get(id)).toMatchObject({ status: "running" });
  expect((await host.driver.list()).filter(({ state }) => state === "running")).toHaveLength(1);
  await pause(id);
  const command = { args: ["/bin/true"], timeout_seconds: 60, stream: false };
  expect(await runBuffered(host.app, actor, id, command)).toMatchObject({ exit_code: 0 });
  const resumes = await db
    .selectFrom("activity")
    .select("action")
    .where("target_id", "=", id)
    .where("action", "=", "sandbox.resumed")
    .execute();
  expect(resumes).toHaveLength(2);
});

test("does not wake a paused sandbox with auto_resume while its workspace is suspended", async () => {
  const { id } = await create({ auto_resume: true });
  await write(id, "/workspace/kept", "kept");
  await pause(id);
  const { workspace_id } = await db
    .selectFrom("sandboxes")
    .select("workspace_id")
    .where("id", "=", id)
    .executeTakeFirstOrThrow();
  const suspend = (suspended_at: Date | null) =>
    db.updateTable("workspaces").set({ suspended_at }).where("id", "=", workspace_id).execute();
  await suspend(new Date());
  await expect(contentOf(id, "/workspace/kept")).rejects.toMatchObject({
    code: "sandbox_paused",
    status: 409,
  });
  expect(await get(id)).toMatchObject({ status: "paused" });
  await suspend(null);
  expect(await contentOf(id, "/workspace/kept")).toBe("kept");
});

test("does not wake a paused sandbox with auto_resume for a viewer of the team", async () => {
  const { id } = await create({ auto_resume: true });
  await write(id, "/workspace/kept", "kept");
  const workspaces = actor.workspaces.map((workspace) => ({ ...workspace, role: "viewer" as const }));
  const readAsViewer = () => read(host.app, { ...actor, workspaces }, id, "/workspace/kept");
  expect(await readAsViewer()).toMatchObject({ is_dir: false });
  await pause(id);
  await expect(readAsViewer()).rejects.toMatchObject({ code: "sandbox_paused", status: 409 });
  expect(await get(id)).toMatchObject({ status: "paused" });
  expect(await contentOf(id, "/workspace/kept")).toBe("kept");
});

test("makes a call wait during a pause, and then refuses it because the sandbox is paused", async () => {
  const { id } = await create({ auto_resume: true });
  await write(id, "/workspace/kept", "kept");
  host.driver.slow("checkpoint", 100);
  const pausing = pause(id);
  await expect.poll(() => get(id)).toMatchObject({ status: "running", transition: "pausing" });
  expect(await contentOf(id, "/workspace/kept")).toBe("kept");
  await pausing;
  host.driver.slow("checkpoint", 0);
});

test("leaves the sandbox running after a failed pause, and reports the reason", async () => {
  const { id } = await create();
  await write(id, "/workspace/kept", "kept");
  const found = { pid: 7, process: "python3", file: "/persist/x" };
  host.driver.fail("checkpoint", new RuntimeError("not_checkpointable", "x is open", { details: found }));
  await expect(pause(id)).rejects.toMatchObject({ code: "not_checkpointable", status: 409, meta: found });
  expect(await get(id)).toMatchObject({ status: "running", transition: null });
  expect(await contentOf(id, "/workspace/kept")).toBe("kept");
  expect((await leftovers()).snapshots).toEqual([]);
});

test("leaves the sandbox paused after a failed resume, and succeeds on the next resume", async () => {
  const { id } = await create();
  await pause(id);
  await expect.poll(leftovers).toMatchObject({ machines: 0 });
  host.driver.fail("restore", new RuntimeError("failed", "no luck"));
  expect(await refusal(resume(id))).toMatchObject({ code: "restore_failed", status: 503 });
  expect(await get(id)).toMatchObject({ status: "paused", transition: null, machine_id: null });
  expect(await resume(id)).toMatchObject({ status: "running" });
});

test("keeps a snapshot of another runtime build or other processors without trying to restore it", async () => {
  const { id } = await create();
  await pause(id);
  const { cpu_class } = await db.selectFrom("hosts").select("cpu_class").executeTakeFirstOrThrow();
  await db.updateTable("hosts").set({ cpu_class: "another" }).execute();
  expect(await refusal(resume(id))).toMatchObject({ code: "restore_failed", status: 503 });
  await db.updateTable("hosts").set({ cpu_class }).execute();
  expect(await resume(id)).toMatchObject({ status: "running" });
});

test("deletes the snapshot of a paused sandbox that is deleted", async () => {
  const { id } = await create();
  await pause(id);
  expect(await terminateSandbox(host.app, actor, id)).toMatchObject({ status: "terminated" });
  await expect.poll(leftovers).toEqual(nothing);
  expect(await refusal(resume(id))).toMatchObject({ code: "sandbox_terminated", status: 409 });
});

test("leaves nothing of a sandbox that is deleted during a pause or a resume", async () => {
  const { id } = await create();
  host.driver.slow("checkpoint", 100);
  const pausing = refusal(pause(id));
  await expect.poll(() => get(id)).toMatchObject({ transition: "pausing" });
  expect(await terminateSandbox(host.app, actor, id)).toMatchObject({ status: "terminated" });
  expect(await pausing).toMatchObject({ code: "sandbox_terminated" });
  host.driver.slow("checkpoint", 0);

  const { id: other } = await create();
  await pause(other);
  host.driver.slow("restore", 100);
  const resuming = refusal(resume(other));
  await expect.poll(() => get(other)).toMatchObject({ transition: "resuming" });
  expect(await terminateSandbox(host.app, actor, other)).toMatchObject({ status: "terminated" });
  expect(await resuming).toMatchObject({ code: "sandbox_terminated" });
  host.driver.slow("restore", 0);
  await expect.poll(leftovers).toEqual(nothing);
});

test("applies a tier's cap to explicit and concurrent pauses, and the free tier's cap also at the deadline", async () => {
  const free = await personWithTier(db, "free");
  const rows = [];
  for (let n = 0; n < 5; n += 1) rows.push(await create({ on_timeout: "pause" }, free.actor));
  const answers = await Promise.all(rows.map(({ id }) => refusal(pause(id))));
  const refused = answers.filter((answer) => (answer as { code?: string }).code === "snapshot_cap_reached");
  expect(refused).toHaveLength(2);
  expect(refused[0]).toMatchObject({ status: 409 });
  host.clock.advance(700_000);
  await expireSandboxes(host.app);
  const now = await Promise.all(rows.map(({ id }) => get(id)));
  expect(now.map(({ status }) => status).toSorted()).toEqual([
    "paused",
    "paused",
    "paused",
    "terminated",
    "terminated",
  ]);
  expect(now.find(({ status }) => status === "terminated")).toMatchObject({ termination_reason: "timeout" });
});

test("pauses a sandbox with on_timeout=pause at its deadline, without a cap for paid tiers", async () => {
  const one = await create({ on_timeout: "pause", timeout_seconds: 10 });
  const kill = await create({ timeout_seconds: 10 });
  await db
    .updateTable("workspaces")
    .set({ sandbox_tier: "payg" })
    .where("id", "=", paid.workspace.id)
    .execute();
  host.clock.advance(11_000);
  await expireSandboxes(host.app);
  expect(await get(one.id)).toMatchObject({ status: "paused" });
  expect(await get(kill.id)).toMatchObject({ status: "terminated", termination_reason: "timeout" });
  const stored = await db
    .selectFrom("snapshots")
    .select("reason")
    .where("owner_id", "=", one.id)
    .executeTakeFirst();
  expect(stored).toEqual({ reason: "deadline" });
});

test("retries a failed pause at the deadline for a minute, then terminates the sandbox", async () => {
  const { id } = await create({ on_timeout: "pause", timeout_seconds: 10 });
  const blockCheckpoint = () =>
    host.driver.fail("checkpoint", new RuntimeError("not_checkpointable", "a file is open"));
  host.clock.advance(11_000);
  blockCheckpoint();
  await expireSandboxes(host.app);
  expect(await get(id)).toMatchObject({ status: "running", transition: null });
  host.clock.advance(60_000);
  blockCheckpoint();
  await expireSandboxes(host.app);
  expect(await get(id)).toMatchObject({ status: "terminated", termination_reason: "timeout" });
});

test("terminates a sandbox when its snapshot expires; an enterprise snapshot never expires", async () => {
  const enterprise = await personWithTier(db, "enterprise");
  const [short, long] = [await create(), await create({}, enterprise.actor)];
  await pause(short.id);
  expect(toPauseRecord(await pause(long.id)).paused_expires_at).toBeNull();
  host.clock.advance(29 * dayMs);
  await reclaimSnapshots(host.app);
  expect(await get(short.id)).toMatchObject({ status: "paused" });
  host.clock.advance(2 * dayMs);
  await reclaimSnapshots(host.app);
  expect(await get(short.id)).toMatchObject({
    status: "terminated",
    termination_reason: "snapshot_expired",
  });
  host.clock.advance(10_000 * dayMs);
  await reclaimSnapshots(host.app);
  expect(await get(long.id)).toMatchObject({ status: "paused" });
  await expect.poll(async () => (await leftovers()).snapshots).toHaveLength(1);
});

test("ends a move later if its end could not be written, and blocks no caller", async () => {
  const { id } = await create();
  await db.updateTable("sandboxes").set({ transition: "pausing" }).where("id", "=", id).execute();
  const answer = refusal(contentOf(id, "/workspace"));
  await endStaleMoves(host.app);
  await answer;
  expect(await get(id)).toMatchObject({ status: "running", transition: null });
});

const untilPaused = ["pause.begun", "pause.taken", "pause.committed"];
const untilResumed = ["resume.begun", "resume.restored", "resume.committed"];

test.each([...untilPaused, ...untilResumed])(
  "leaves a sandbox that can be used, resumed and deleted after a crash at %s",
  async (point) => {
    const { id } = await create();
    await write(id, "/workspace/kept", "kept");
    if (untilResumed.includes(point)) await pause(id);
    const there = Promise.withResolvers<void>();
    onKillPoint(async (at) => {
      if (at !== point) return;
      there.resolve();
      // Simulates the end of the process: nothing after this point happens.
      await new Promise(() => {});
    });
    void (untilPaused.includes(point) ? pause(id) : resume(id));
    await there.promise;
    onKillPoint(undefined);
    await host.restart();
    const isPaused = ["pause.committed", "resume.begun", "resume.restored"].includes(point);
    expect(await get(id)).toMatchObject({ status: isPaused ? "paused" : "running", transition: null });
    const snapshots = await db.selectFrom("snapshots").select("id").execute();
    await expect
      .poll(leftovers)
      .toEqual(
        isPaused
          ? { machines: 0, rows: 0, snapshots: snapshots.map((row) => row.id) }
          : { machines: 1, rows: 1, snapshots: [] },
      );
    if (isPaused) await resume(id);
    expect(await contentOf(id, "/workspace/kept")).toBe("kept");
    await pause(id);
    await resume(id);
    expect(await contentOf(id, "/workspace/kept")).toBe("kept");
  },
);

test("terminates at the next start a paused sandbox whose snapshot is missing on the disk", async () => {
  const { id } = await create();
  const snapshot = await pause(id);
  await host.app.machines.host.dropSnapshot(snapshot.id);
  await host.restart();
  expect(await get(id)).toMatchObject({ status: "terminated", termination_reason: "host_lost" });
});
