import { once } from "node:events";
import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { createServer, get, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sql } from "kysely";
import { afterAll, afterEach, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import type { Plan } from "#accounts/roles.ts";
import { listNotifications } from "#accounts/notifications/notifications.ts";
import type { App } from "#app.ts";
import { OpenStreams } from "#http/streams/open-streams.ts";
import { FsBlobs } from "#lib/blobs/fs.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { silentLog, testDatabase } from "../../../test/harness.ts";
import { Addons } from "../addons/addons.ts";
import { createAddon } from "../addons/create.ts";
import { AddonCreate } from "../addons/schema.ts";
import { makeProject, personOn, projectsApp } from "../testing/platform-app.ts";
import { Backups } from "./backups.ts";
import { runBackup } from "./jobs/run-backup.ts";
import { runRestore } from "./jobs/run-restore.ts";
import { createBackup } from "./create.ts";
import { download } from "./download.ts";
import type { BackupEngine } from "./engines/engine.ts";
import { BackupFailed } from "./errors.ts";
import {
  backupInfo,
  deleteBackup,
  getBackup,
  listBackups,
  restoresInto,
  toggleAutoBackup,
} from "./manage.ts";
import { dayMs, nextDaily } from "./plan.ts";
import { restoreBackup } from "./restore.ts";
import { startDueBackups } from "./jobs/schedule.ts";
import { downloadSite } from "./site-routes.ts";
import { pruneBackups } from "./jobs/prune.ts";

const { db } = await testDatabase();
const app = { ...(await projectsApp(db)), log: silentLog };
const { clock } = app;
const directory = await mkdtemp(join(tmpdir(), "kontor-backups-"));
afterAll(() => rm(directory, { recursive: true }));
afterEach(() => onKillPoint(undefined));
const { signal } = new AbortController();

/** Simulated content of each add-on's database, by add-on. */
const data = new Map<string, string>();
/** Content that a test restore has loaded, by add-on. */
const trials = new Map<string, string>();
let differs = false;
let refuses = false;
/** Ids of restores that are in place. */
const inPlace = new Set<string>();
/** Machines that were backed up, in order. */
const asksOf: unknown[] = [];
let duringDump: ((ends: AbortSignal) => Promise<void>) | undefined;
let isUnreachable = false;
const asked: { id: string; putsBack: boolean }[] = [];
const cleaned: { id: string; isCompleted: boolean }[] = [];
const engine: BackupEngine = {
  extension: "dump",
  async dump(guest, { id }, sink, ends) {
    asksOf.push(guest);
    await duringDump?.(ends);
    const bytes = data.get(id) ?? "";
    return { stored: await sink(pieces(bytes)), description: bytes };
  },
  async load(_guest, { id }, content) {
    if (refuses) throw new BackupFailed("The test restore rejected the bytes.");
    trials.set(id, Buffer.concat(await Array.fromAsync(content)).toString());
  },
  async compare(_guest, { id }, description) {
    const newestRestore = trials.get(id) ?? "";
    if (newestRestore !== description || differs)
      throw new BackupFailed("The test restore holds other data.");
    return newestRestore;
  },
  async restore({ addon, id, source }) {
    data.set(addon.id, Buffer.concat(await Array.fromAsync(source())).toString());
    inPlace.add(id);
  },
  async isInPlace({ id, putsBack }) {
    asked.push({ id, putsBack });
    if (isUnreachable) throw new Error("the machine is unreachable");
    return inPlace.has(id);
  },
  async cleanUp({ id, isCompleted }) {
    cleaned.push({ id, isCompleted });
  },
};
async function* pieces(text: string) {
  yield Buffer.from(text);
}

/** Returns a Backups service like that of a new process. */
function newBackups(): Backups {
  // There are no machines: the engine above simulates them.
  const addons = Object.assign(new Addons(app as unknown as App), {
    guest: () => ({}),
    throwaway: async () => ({ guest: {}, [Symbol.asyncDispose]: async () => {} }),
  }) as unknown as Addons;
  return new Backups(app, addons, new FsBlobs(directory), { postgres: engine, redis: engine });
}
const backups = newBackups();

interface TestAddon {
  actor: Actor;
  projectId: string;
  addonId: string;
}

async function addonOn(plan: Plan): Promise<TestAddon> {
  const actor = await personOn(db, plan === "starter" ? "pro" : plan);
  const { id: projectId } = await makeProject(app, actor);
  const input = AddonCreate.parse({ kind: "postgres" });
  const { id: addonId } = await createAddon(backups.addons, actor, projectId, input);
  await db.updateTable("addons").set({ status: "running" }).where("id", "=", addonId).execute();
  data.set(addonId, `rows of ${addonId}`);
  if (plan === "starter") {
    actor.workspaces[0]!.plan = "starter";
    await db.updateTable("workspaces").set({ plan }).where("id", "=", actor.workspaces[0]!.id).execute();
  }
  return { actor, projectId, addonId };
}

const requestBackup = ({ actor, projectId, addonId }: TestAddon) =>
  createBackup(backups, actor, projectId, addonId);
async function find({ actor, ...ids }: TestAddon, backupId: string) {
  return (await getBackup(backups, actor, { ...ids, backupId })).backup;
}
async function makeBackup(addon: TestAddon) {
  const { id } = await requestBackup(addon);
  await runBackup(backups, id, signal);
  return find(addon, id);
}
const doubtOf = async (id: string) =>
  (await db.selectFrom("restores").select("in_doubt_since").where("id", "=", id).executeTakeFirstOrThrow())
    .in_doubt_since;
const news = async ({ actor }: TestAddon) => (await listNotifications(app, actor)).map(({ title }) => title);
const keys = ({ addonId }: TestAddon) => backups.blobs.list(`backups/${addonId}/`);
const code = (work: Promise<unknown>) =>
  work.then(
    () => "done",
    (error: { code?: string }) => error.code,
  );

test("completes a backup after a test restore whose content matches", async () => {
  const addon = await addonOn("pro");
  const { status } = await requestBackup(addon);
  expect(status).toBe("pending");
  expect(await code(requestBackup(addon))).toBe("backup_running");
  const [row] = await listBackups(backups, addon.actor, addon.projectId, addon.addonId);
  await runBackup(backups, row!.id, signal);
  expect(await find(addon, row!.id)).toMatchObject({
    status: "completed",
    size_bytes: data.get(addon.addonId)!.length,
    verified_at: clock.now(),
    expires_at: new Date(clock.now().getTime() + 7 * dayMs),
  });
  expect(await keys(addon)).toHaveLength(1);
});

test("fails a backup whose test restore differs, deletes its bytes, and notifies the owner", async () => {
  const addon = await addonOn("pro");
  differs = true;
  const row = await makeBackup(addon).finally(() => (differs = false));
  expect(row).toMatchObject({
    status: "failed",
    error: "The test restore holds other data.",
    blob_key: null,
  });
  expect(await keys(addon)).toEqual([]);
  expect(await news(addon)).toEqual([expect.stringMatching(/^A backup of postgres \(.*\) failed$/)]);
});

test("aborts a backup with the cause when the test restore rejects its bytes", async () => {
  const addon = await addonOn("pro");
  data.set(addon.addonId, "x".repeat(1e6));
  refuses = true;
  const row = await makeBackup(addon).finally(() => (refuses = false));
  expect(row).toMatchObject({
    status: "failed",
    error: "The test restore rejected the bytes.",
    blob_key: null,
  });
  expect(await keys(addon)).toEqual([]);
  expect(await readdir(join(directory, ".unfinished"))).toEqual([]);
});

test("fails a backup whose bytes changed in the store", async () => {
  const addon = await addonOn("pro");
  onKillPoint(async (at) => {
    if (at !== "backup.stored") return;
    const [key = ""] = await keys(addon);
    await writeFile(join(directory, key), "rows of nobody");
  });
  expect(await makeBackup(addon)).toMatchObject({
    status: "failed",
    error: "The bytes in the store differ from the bytes that were stored.",
  });
  expect(await keys(addon)).toEqual([]);
});

test("backs up the add-on's current machine once the test restore has memory", async () => {
  const addon = await addonOn("pro");
  const { id } = await requestBackup(addon);
  const waited = newBackups();
  const [before, after] = [{}, {}];
  let runs = before;
  Object.assign(waited.addons, {
    guest: () => runs,
    // The add-on restarted while other machines freed memory.
    throwaway: async () => {
      runs = after;
      return { guest: {}, [Symbol.asyncDispose]: async () => {} };
    },
  });
  await runBackup(waited, id, signal);
  expect(asksOf.at(-1)).toBe(after);
});

test.each(["backup.begun", "backup.stored", "backup.verified", "backup.completed"])(
  "completes a backup once when a server died at %s",
  async (point) => {
    const addon = await addonOn("pro");
    const { id } = await requestBackup(addon);
    const dead = Promise.withResolvers<void>();
    onKillPoint((at) => {
      if (at !== point) return Promise.resolve();
      dead.resolve();
      return new Promise(() => {});
    });
    const first = new AbortController();
    void runBackup(backups, id, first.signal);
    await dead.promise;
    onKillPoint(undefined);
    await runBackup(newBackups(), id, signal);
    expect(await find(addon, id)).toMatchObject({
      status: "completed",
      attempts: point === "backup.completed" ? 1 : 2,
    });
    expect(await keys(addon)).toHaveLength(1);
  },
);

test("starts a payer's single backup before another payer's three waiting backups", async () => {
  const busy = await personOn(db, "team");
  const other = await addonOn("team");
  const isolated = newBackups();
  const started: string[] = [];
  const ends: (() => void)[] = [];
  onKillPoint((at) =>
    at === "backup.stored" ? new Promise((resolve) => ends.push(resolve)) : Promise.resolve(),
  );
  const run = async (id: string) => {
    const task = isolated.tasks["platform.backups.run"]!;
    await task({ backup: id } as never, { attempt: 1, maxAttempts: 25, signal });
  };
  const workers: Promise<void>[] = [];
  for (let n = 0; n < 5; n += 1) {
    const { id: projectId } = await makeProject(app, busy);
    const input = AddonCreate.parse({ kind: "postgres" });
    const { id: addonId } = await createAddon(isolated.addons, busy, projectId, input);
    await db.updateTable("addons").set({ status: "running" }).where("id", "=", addonId).execute();
    const { id } = await createBackup(isolated, busy, projectId, addonId);
    started.push(id);
    workers.push(run(id));
    if (n === 1) await expect.poll(() => ends.length).toBe(2);
  }
  const { id } = await requestBackup(other);
  workers.push(run(id));
  const running = async () =>
    (await db.selectFrom("backups").select("id").where("status", "=", "running").execute()).map(
      (row) => row.id,
    );
  const isRunning = await running();
  // Only the two running jobs hold workers.
  await Promise.all(workers.slice(2));
  ends.shift()?.();
  await expect.poll(async () => (await running()).includes(id)).toBe(true);
  expect((await running()).filter((one) => one !== id)).toHaveLength(1);
  expect(isRunning).toEqual(expect.arrayContaining(started.slice(0, 2)));
  onKillPoint(undefined);
  while (ends.length > 0) ends.shift()?.();
  await Promise.all(workers);
  const pending = await db
    .selectFrom("backups")
    .select("id")
    .where("status", "in", ["pending", "running"])
    .execute();
  expect(pending.filter((row) => row.id === id || started.includes(row.id))).toEqual([]);
});

test("keeps a backup pending, and starts no daily backup, while the workspace is suspended", async () => {
  const addon = await addonOn("pro");
  const { id } = await requestBackup(addon);
  const workspace = addon.actor.workspaces[0]!.id;
  const hold = (since: Date | null) =>
    db.updateTable("workspaces").set({ held_since: since }).where("id", "=", workspace).execute();
  const task = backups.tasks["platform.backups.run"]!;
  const run = () => task({ backup: id } as never, { attempt: 1, maxAttempts: 25, signal });
  await hold(clock.now());
  await run();
  expect(await find(addon, id)).toMatchObject({ status: "pending" });
  const dueAt = new Date(clock.now().getTime() - 1);
  await db
    .updateTable("addons")
    .set({ auto_backup: true, next_backup_at: dueAt })
    .where("id", "=", addon.addonId)
    .execute();
  await startDueBackups(backups);
  const due = () =>
    db.selectFrom("addons").select("next_backup_at").where("id", "=", addon.addonId).executeTakeFirst();
  expect(await due()).toEqual({ next_backup_at: dueAt });
  await hold(null);
  await run();
  expect(await find(addon, id)).toMatchObject({ status: "completed" });
  await startDueBackups(backups);
  expect(await due()).not.toEqual({ next_backup_at: dueAt });
});

test("stops a backup when its workspace is suspended, and resumes it afterwards", async () => {
  const addon = await addonOn("pro");
  const { id } = await requestBackup(addon);
  const workspace = addon.actor.workspaces[0]!.id;
  const hold = (since: Date | null) =>
    db.updateTable("workspaces").set({ held_since: since }).where("id", "=", workspace).execute();
  const task = backups.tasks["platform.backups.run"]!;
  const run = () => task({ backup: id } as never, { attempt: 1, maxAttempts: 25, signal });
  duringDump = async (ends) => {
    await hold(clock.now());
    await new Promise((_resolve, reject) =>
      ends.addEventListener("abort", () => reject(ends.reason), { once: true }),
    );
  };
  await run();
  const row = await db
    .selectFrom("backups")
    .select(["status", "attempts", "error"])
    .where("id", "=", id)
    .executeTakeFirst();
  expect(row).toEqual({ status: "running", attempts: 0, error: null });
  const jobs = await sql<{ run_at: Date }>`
    select run_at from graphile_worker.jobs where key = ${`backup:${id}`}`.execute(db);
  expect(jobs.rows).toEqual([{ run_at: new Date(clock.now().getTime() + 60_000) }]);
  duringDump = undefined;
  await hold(null);
  await run();
  expect(await find(addon, id)).toMatchObject({ status: "completed" });
});

test("lists a failed backup for the plan's retention, even after a sweep deletes its bytes", async () => {
  const addon = await addonOn("pro");
  const { id } = await requestBackup(addon);
  differs = true;
  const dead = Promise.withResolvers<void>();
  onKillPoint((at) => {
    if (at !== "backup.failed") return Promise.resolve();
    dead.resolve();
    return new Promise(() => {});
  });
  void runBackup(backups, id, signal);
  await dead.promise.finally(() => (differs = false));
  onKillPoint(undefined);
  expect(await keys(addon)).toHaveLength(1);
  await pruneBackups(newBackups());
  expect(await keys(addon)).toEqual([]);
  expect(await find(addon, id)).toMatchObject({
    status: "failed",
    error: "The test restore holds other data.",
    blob_key: null,
  });
  clock.advance(7 * dayMs);
  await pruneBackups(backups);
  expect(await code(find(addon, id))).toBe("backup_not_found");
});

test("does not repeat a backup during which three servers crashed", async () => {
  const addon = await addonOn("pro");
  const { id } = await requestBackup(addon);
  await db.updateTable("backups").set({ status: "running", attempts: 3 }).where("id", "=", id).execute();
  await runBackup(newBackups(), id, signal);
  expect(await find(addon, id)).toMatchObject({
    status: "failed",
    error: expect.stringContaining("3 times"),
  });
});

test("leaves a running backup to the next server at a graceful shutdown, without counting an attempt", async () => {
  const addon = await addonOn("pro");
  const { id } = await requestBackup(addon);
  await runBackup(backups, id, AbortSignal.abort());
  expect(await find(addon, id)).toMatchObject({ status: "running", attempts: 0 });
  await runBackup(newBackups(), id, signal);
  expect(await find(addon, id)).toMatchObject({ status: "completed", attempts: 1 });
});

test.each([
  ["a graceful shutdown", () => {}, { status: "running", attempts: 0 }],
  [
    "the deletion of a backup",
    (id: string) => db.updateTable("backups").set({ deleted_at: clock.now() }).where("id", "=", id).execute(),
    undefined,
  ],
])("%s ends a backup that waits for its add-on", async (_, happens, expected) => {
  const addon = await addonOn("pro");
  const { id } = await requestBackup(addon);
  const waiting = Promise.withResolvers<void>();
  const stops = new AbortController();
  const without = newBackups();
  without.addons.guest = () => {
    waiting.resolve();
    return undefined;
  };
  const carried = runBackup(without, id, stops.signal);
  await waiting.promise;
  await happens(id);
  if (expected) stops.abort();
  await carried;
  const row = await db.selectFrom("backups").selectAll().where("id", "=", id).executeTakeFirstOrThrow();
  expect(row).toMatchObject(expected ?? { error: expect.not.stringContaining("server") });
  expect(await news(addon)).toEqual([]);
});

test("limits manual backups per day, counting deleted ones but not failed ones", async () => {
  const addon = await addonOn("pro");
  const { actor, projectId, addonId } = addon;
  differs = true;
  await makeBackup(addon).finally(() => (differs = false));
  const { id } = await makeBackup(addon);
  await deleteBackup(backups, actor, { projectId, addonId, backupId: id });
  await pruneBackups(backups);
  expect(await keys(addon)).toEqual([]);
  for (let n = 2; n <= 5; n++) await makeBackup(addon);
  expect(await backupInfo(backups, actor, projectId, addonId)).toMatchObject({ dailyQuota: 5, usedToday: 5 });
  await expect(requestBackup(addon)).rejects.toMatchObject({
    code: "plan_limit",
    meta: { limit: "backups_per_day", allowed: 5, tier_needed: "team" },
  });
  clock.advance(dayMs);
  expect((await makeBackup(addon)).status).toBe("completed");
});

test("makes daily backups for plans that include them, at each add-on's own hour", async () => {
  const poor = await addonOn("starter");
  expect(await code(toggleAutoBackup(backups, poor.actor, poor.projectId, poor.addonId))).toBe("plan_limit");
  const addon = await addonOn("pro");
  const toggle = () => toggleAutoBackup(backups, addon.actor, addon.projectId, addon.addonId);
  const on = await toggle();
  expect(on).toMatchObject({ auto_backup: true, next_backup_at: nextDaily(addon.addonId, clock.now()) });
  clock.set(on.next_backup_at!);
  await startDueBackups(backups);
  await startDueBackups(backups);
  const rows = await listBackups(backups, addon.actor, addon.projectId, addon.addonId);
  expect(rows).toMatchObject([{ kind: "auto", status: "pending" }]);
  expect(await news(addon)).toEqual([]);
  const info = await backupInfo(backups, addon.actor, addon.projectId, addon.addonId);
  expect(info.addon.next_backup_at).toEqual(new Date(on.next_backup_at!.getTime() + dayMs));
  expect(await toggle()).toMatchObject({ auto_backup: false, next_backup_at: null });
});

test("makes a missed backup once the add-on runs, and notifies the owner once", async () => {
  const addon = await addonOn("pro");
  const { next_backup_at } = await toggleAutoBackup(backups, addon.actor, addon.projectId, addon.addonId);
  const state = (status: "stopped" | "running") =>
    db.updateTable("addons").set({ status }).where("id", "=", addon.addonId).execute();
  await state("stopped");
  clock.set(new Date(next_backup_at!.getTime() + 2 * 60 * 60_000));
  for (let round = 0; round < 2; round++) await startDueBackups(backups);
  expect(await news(addon)).toEqual([expect.stringMatching(/^The daily backup of postgres .* was missed$/)]);
  await state("running");
  await startDueBackups(backups);
  const rows = await listBackups(backups, addon.actor, addon.projectId, addon.addonId);
  expect(rows).toMatchObject([{ kind: "auto" }]);
  expect(await news(addon)).toHaveLength(1);
});

test("keeps a backup and its bytes until the end of the plan's retention", async () => {
  const addon = await addonOn("team");
  const { id } = await makeBackup(addon);
  clock.advance(30 * dayMs - 1);
  await pruneBackups(backups);
  expect(await keys(addon)).toHaveLength(1);
  clock.advance(1);
  await pruneBackups(backups);
  expect(await keys(addon)).toEqual([]);
  expect(await code(find(addon, id))).toBe("backup_not_found");
});

test("stops a running backup when the backup is deleted, and deletes its bytes", async () => {
  const addon = await addonOn("pro");
  const { actor, projectId, addonId } = addon;
  const { id } = await requestBackup(addon);
  onKillPoint(async (at) => {
    if (at === "backup.verified") await deleteBackup(backups, actor, { projectId, addonId, backupId: id });
  });
  await runBackup(backups, id, signal);
  expect(await keys(addon)).toEqual([]);
  expect(await news(addon)).toEqual([]);
  expect(await code(requestBackup(addon))).toBe("done");
});

test("deletes the bytes of a deleted add-on, even during a backup", async () => {
  const addon = await addonOn("pro");
  await makeBackup(addon);
  const { id } = await requestBackup(addon);
  await db.updateTable("addons").set({ deleted_at: clock.now() }).where("id", "=", addon.addonId).execute();
  await runBackup(backups, id, signal);
  for (let twice = 0; twice < 2; twice++) await backups.deleteBackups(addon.addonId);
  expect(await keys(addon)).toEqual([]);
});

test("makes a safety backup before a restore, and leaves the add-on's data as it is if that backup fails", async () => {
  const addon = await addonOn("pro");
  const { id: backupId } = await makeBackup(addon);
  const was = data.get(addon.addonId)!;
  data.set(addon.addonId, "newer");
  const { actor, ...ids } = addon;
  const failing = await restoreBackup(backups, actor, { ...ids, backupId }, undefined);
  expect(await code(requestBackup(addon))).toBe("backup_running");
  expect(await code(deleteBackup(backups, actor, { ...ids, backupId }))).toBe("backup_in_use");
  differs = true;
  await runRestore(backups, failing.id, signal).finally(() => (differs = false));
  expect(data.get(addon.addonId)).toBe("newer");
  expect(await news(addon)).toEqual([expect.stringMatching(/^A restore of postgres .* failed$/)]);
  const second = await restoreBackup(backups, actor, { ...ids, backupId }, undefined);
  await runRestore(backups, second.id, signal);
  expect(data.get(addon.addonId)).toBe(was);
  const kept = await find(addon, second.safety_backup_id!);
  expect(kept).toMatchObject({ kind: "safety", status: "completed", contents: "newer" });
});

test("makes the safety backup of a restore in the restore's job, once, after a restart", async () => {
  const addon = await addonOn("pro");
  const { id: backupId } = await makeBackup(addon);
  const was = data.get(addon.addonId)!;
  data.set(addon.addonId, "newer");
  const { actor, ...ids } = addon;
  const { id, safety_backup_id } = await restoreBackup(backups, actor, { ...ids, backupId }, undefined);
  const dead = Promise.withResolvers<void>();
  onKillPoint((at) => {
    if (at !== "backup.stored") return Promise.resolve();
    dead.resolve();
    return new Promise(() => {});
  });
  void runRestore(backups, id, signal);
  await dead.promise;
  onKillPoint(undefined);
  const second = newBackups();
  await second.start();
  const jobs = await sql<{ key: string; queue_name: string }>`
    select key, queue_name from graphile_worker.jobs where key in (${`backup:${safety_backup_id}`}, ${`restore:${id}`})
  `.execute(db);
  expect(jobs.rows).toEqual([{ key: `restore:${id}`, queue_name: null }]);
  const keeping = second.makeSafetyBackup(safety_backup_id!, signal);
  await Promise.all([keeping, runRestore(second, id, signal)]);
  expect(data.get(addon.addonId)).toBe(was);
  expect(await find(addon, safety_backup_id!)).toMatchObject({ status: "completed", attempts: 2 });
});

test("does not report a restore as failed when its data is in place, and reports no result while that is unknown", async () => {
  const addon = await addonOn("pro");
  const { id: backupId } = await makeBackup(addon);
  const was = data.get(addon.addonId)!;
  data.set(addon.addonId, "newer");
  const { actor, ...ids } = addon;
  const { id } = await restoreBackup(backups, actor, { ...ids, backupId }, undefined);
  onKillPoint(async (at) => {
    if (at === "restore.in-place") throw new Error("the response was lost");
  });
  const status = async () => (await restoresInto(backups, actor, ids.projectId, ids.addonId))[0]!.status;
  isUnreachable = true;
  await expect(runRestore(backups, id, signal)).rejects.toThrow("the machine is unreachable");
  expect(await status()).toBe("running");
  expect(await doubtOf(id)).not.toBeNull();
  isUnreachable = false;
  await db.updateTable("restores").set({ attempts: 3 }).where("id", "=", id).execute();
  await runRestore(newBackups(), id, signal);
  expect(await status()).toBe("completed");
  expect(await doubtOf(id)).toBeNull();
  expect(data.get(addon.addonId)).toBe(was);
  expect(await news(addon)).toEqual([]);
});

test("ends a restore after an hour if its add-on does not start, and keeps a backup of the earlier data", async () => {
  const addon = await addonOn("pro");
  const { id: backupId } = await makeBackup(addon);
  data.set(addon.addonId, "newer");
  const { actor, ...ids } = addon;
  const { id, safety_backup_id } = await restoreBackup(backups, actor, { ...ids, backupId }, undefined);
  onKillPoint(async (at) => {
    if (at === "restore.in-place") throw new Error("the response was lost");
  });
  isUnreachable = true;
  const newestRestore = async () => (await restoresInto(backups, actor, ids.projectId, ids.addonId))[0]!;
  for (const minutes of [0, 30, 29]) {
    clock.advance(minutes * 60_000);
    await expect(runRestore(backups, id, signal)).rejects.toThrow("the machine is unreachable");
    expect(await newestRestore()).toMatchObject({ status: "running" });
  }
  clock.advance(60_000);
  // The job is retried until the clean-up succeeds.
  await expect(runRestore(backups, id, signal)).rejects.toThrow("the machine is unreachable");
  expect(await newestRestore()).toMatchObject({
    status: "failed",
    error: expect.stringContaining("did not start again"),
  });
  expect(await find(addon, safety_backup_id!)).toMatchObject({ status: "completed", contents: "newer" });
  const [told] = await listNotifications(app, actor);
  expect(told).toMatchObject({ title: expect.stringMatching(/^A restore of postgres .* failed$/) });
  expect(told!.body).toContain("either the restored data or its earlier data");
  expect(cleaned.filter((one) => one.id === id)).toEqual([]);
  isUnreachable = false;
  await runRestore(newBackups(), id, signal);
  expect(cleaned.filter((one) => one.id === id)).toEqual([{ id, isCompleted: true }]);
  // The old data is put back only while the restore runs.
  expect(asked.filter((one) => one.id === id).map(({ putsBack }) => putsBack)).toEqual([
    ...Array.from({ length: 4 }, () => true),
    false,
    false,
  ]);
  expect(await doubtOf(id)).not.toBeNull();
  expect(await code(requestBackup(addon))).toBe("done");
});

test("does not refuse other backups because of an ended restore's safety backup", async () => {
  const addon = await addonOn("pro");
  const { id: backupId } = await makeBackup(addon);
  const { actor, ...ids } = addon;
  const { id, safety_backup_id } = await restoreBackup(backups, actor, { ...ids, backupId }, undefined);
  await db.updateTable("restores").set({ attempts: 3 }).where("id", "=", id).execute();
  await runRestore(newBackups(), id, signal);
  expect((await restoresInto(backups, actor, ids.projectId, ids.addonId))[0]).toMatchObject({
    status: "failed",
    error: expect.stringContaining("3 times"),
  });
  expect(await find(addon, safety_backup_id!)).toMatchObject({
    status: "failed",
    error: expect.stringContaining("ended first"),
  });
  expect(await makeBackup(addon)).toMatchObject({ status: "completed" });
});

test("keeps the bytes of a backup that a parallel run completed before this run failed", async () => {
  const addon = await addonOn("pro");
  const { id } = await requestBackup(addon);
  let isFirst = true;
  onKillPoint(async (at) => {
    if (at !== "backup.verified" || !isFirst) return;
    isFirst = false;
    await runBackup(newBackups(), id, signal);
  });
  await runBackup(backups, id, signal);
  expect(isFirst).toBe(false);
  expect(await find(addon, id)).toMatchObject({ status: "completed", error: null });
  expect(await keys(addon)).toHaveLength(1);
});

test("creates a new add-on together with its restore, within the plan's limits", async () => {
  const addon = await addonOn("pro");
  const { id: backupId } = await makeBackup(addon);
  const { actor, ...ids } = addon;
  // The backup's environment may be deleted by now.
  const environment_id = "99999999-9999-4999-8999-999999999999";
  await db.updateTable("addons").set({ environment_id }).where("id", "=", addon.addonId).execute();
  const into = await restoreBackup(backups, actor, { ...ids, backupId }, "copy");
  await runRestore(backups, into.id, signal);
  expect(data.get(into.addon_id)).toBe(data.get(addon.addonId));
  expect(await code(restoreBackup(backups, actor, { ...ids, backupId }, "third"))).toBe("plan_limit");
});

test("serves one backup from a signed URL for an hour, whole or by range", async () => {
  const addon = await addonOn("pro");
  const { id: backupId } = await makeBackup(addon);
  const { actor, ...ids } = addon;
  const site = downloadSite(backups);
  const server = createServer((request, response) => {
    void site.handle(request, response, signal, new OpenStreams(async () => [], app.log));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const { url, sizeBytes } = await download(backups, actor, { ...ids, backupId });
    const here = url.replace(/^http:\/\/[^/]+/, `http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    const whole = await fetch(here);
    const text = await whole.text();
    expect([whole.status, text, text.length]).toEqual([200, data.get(addon.addonId), sizeBytes]);
    expect(whole.headers.get("content-disposition")).toMatch(/^attachment; filename="postgres-.*Z\.dump"$/);
    const part = await fetch(here, { headers: { range: "bytes=5-" } });
    expect([part.status, await part.text()]).toEqual([206, text.slice(5)]);
    expect((await fetch(here, { headers: { range: "bytes=9999-" } })).status).toBe(416);
    expect((await fetch(here, { method: "POST" })).status).toBe(405);
    const { id: other } = await makeBackup(addon);
    expect((await fetch(here.replace(backupId, other))).status).toBe(403);
    expect((await fetch(here.replace(/svc_exp=\d/, "svc_exp=9"))).status).toBe(403);
    clock.advance(61 * 60_000);
    expect(await (await fetch(here)).json()).toMatchObject({ code: "url_expired" });
  } finally {
    server.close();
    server.closeAllConnections();
  }
});

test("ends a download when its client stops reading", async () => {
  const addon = await addonOn("pro");
  // The content is larger than the buffers of a connection.
  data.set(addon.addonId, "x".repeat(16 * 1024 ** 2));
  const { id: backupId } = await makeBackup(addon);
  const { actor, ...ids } = addon;
  const site = downloadSite(backups, { windowMs: 500 });
  const closed = Promise.withResolvers<boolean>();
  const server = createServer((request, response) => {
    response.once("close", () => closed.resolve(response.writableFinished));
    void site.handle(request, response, signal, new OpenStreams(async () => [], app.log));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  try {
    const { url } = await download(backups, actor, { ...ids, backupId });
    const { pathname, search } = new URL(url);
    const stuck = get({ host: "127.0.0.1", port, path: pathname + search, agent: false });
    stuck.on("error", () => {});
    const [unread] = (await once(stuck, "response")) as [IncomingMessage];
    unread.on("error", () => {});
    expect(await closed.promise).toBe(false);
    stuck.destroy();
  } finally {
    server.close();
    server.closeAllConnections();
  }
});
