/**
 * Backups of real databases on real machines. The backups are taken during writes, test-restored before they count as
 * complete, and restored. A backup whose stored bytes changed is refused. The test calls the backup layer as its jobs
 * do.
 */
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import type { App } from "../../server/src/app.ts";
import type { Actor } from "../../server/src/accounts/actor.ts";
import { openDatabase } from "../../server/src/db/db.ts";
import type { Database } from "../../server/src/schema.ts";
import { ensureEmbedded } from "../../server/src/db/embedded/ensure-embedded.ts";
import { migrate } from "../../server/src/db/migrate.ts";
import { FsBlobs } from "../../server/src/lib/blobs/fs.ts";
import { systemClock } from "../../server/src/lib/clock.ts";
import { onKillPoint } from "../../server/src/lib/kill-points.ts";
import type { Guest } from "../../server/src/machines/host/guest.ts";
import { openMachines } from "../../server/src/machines/open.ts";
import { Addons } from "../../server/src/platform/addons/addons.ts";
import { createAddon } from "../../server/src/platform/addons/create.ts";
import { type AddonView, findAddon } from "../../server/src/platform/addons/find.ts";
import { AddonCreate } from "../../server/src/platform/addons/schema.ts";
import { Backups } from "../../server/src/platform/backups/backups.ts";
import { runBackup } from "../../server/src/platform/backups/jobs/run-backup.ts";
import { runRestore } from "../../server/src/platform/backups/jobs/run-restore.ts";
import { createBackup } from "../../server/src/platform/backups/create.ts";
import { getBackup, listBackups, restoresInto } from "../../server/src/platform/backups/manage.ts";
import { restoreBackup } from "../../server/src/platform/backups/restore.ts";
import { start, textOf } from "../../server/src/platform/backups/engines/streams.ts";
import { makeProject, personOn } from "../../server/src/platform/testing/platform-app.ts";
import { silentLog, testConfig, testSecrets } from "../../server/test/harness.ts";
import { removeHostTraces } from "../support/clean.ts";
import { linkImages } from "../support/images.ts";

const parent = process.env["KONTOR_E2E_DATA"] ?? "/var/tmp";
const opened = new AsyncDisposableStack();
const { signal } = new AbortController();
let backups: Backups;
let actor: Actor;
let projectId: string;
let store: string;
let machinesNow: () => Promise<number>;

afterAll(() => opened.disposeAsync());
afterEach(() => onKillPoint(undefined));

beforeAll(async () => {
  const dataDir = mkdtempSync(join(parent, "kontor-backups-"));
  chmodSync(dataDir, 0o711);
  opened.defer(() => rmSync(dataDir, { recursive: true, force: true }));
  await linkImages(dataDir, ["postgres-15", "redis-7"]);
  const embedded = await ensureEmbedded(dataDir);
  opened.defer(() => removeHostTraces(dataDir));
  await migrate(embedded.connection);
  const database = openDatabase<Database>(embedded.connection, { maxConnections: 10, onError: () => {} });
  const { db } = database;
  opened.defer(() => database.close());
  const overrides = { runtime: "gvisor", cpuOvercommit: "100", memoryOvercommit: "10" } as const;
  const config = { ...testConfig(overrides), dataDir };
  const base = { config, db, clock: systemClock, log: silentLog, secrets: testSecrets() };
  const machines = await openMachines(base);
  opened.defer(() => machines.close());
  const list = () => machines.host.list();
  opened.defer(async () => {
    for (const { machine } of await list())
      await machines.host.remove({ machine, hostEpoch: machines.host.epoch, generation: 1 });
  });
  machinesNow = async () => (await list()).length;
  const app = { ...base, machines };
  const addons = new Addons(app);
  const noReaction = { onServerStart: async () => {}, ended: async () => {} };
  await machines.start(app as App, {
    sandbox: noReaction,
    build: noReaction,
    app: noReaction,
    function: noReaction,
    addon: addons.machineOwner,
  });
  await addons.start();
  opened.defer(() => addons.close());
  store = join(dataDir, "backups");
  backups = new Backups(app, addons, new FsBlobs(store));
  actor = await personOn(db, "team");
  projectId = (await makeProject(app, actor)).id;
}, 120_000);

async function running(kind: "postgres" | "redis", name: string): Promise<AddonView> {
  const input = AddonCreate.parse({ kind, name, size: "small" });
  const { id } = await createAddon(backups.addons, actor, projectId, input);
  await vi.waitFor(
    async () => {
      const row = await findAddon(backups.app.db, id);
      expect(row, row?.error ?? "").toMatchObject({ status: "running" });
      expect(backups.addons.guest(id)).toBeDefined();
    },
    { timeout: 60_000, interval: 100 },
  );
  return (await findAddon(backups.app.db, id))!;
}

const guestOf = (addon: AddonView): Guest => backups.addons.guest(addon.id)!;

function sql(addon: AddonView, statements: string): Promise<string> {
  const argv = ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", addon.database!, "-f", "-"];
  return textOf(guestOf(addon), { argv, user: "postgres", stdin: statements }, signal);
}

function redis(addon: AddonView, ...words: string[]): Promise<string> {
  return textOf(guestOf(addon), { argv: ["sh", "/usr/local/lib/kontor-addon/admin", ...words] }, signal);
}

async function backUp(addon: AddonView) {
  const { id } = await createBackup(backups, actor, projectId, addon.id);
  await runBackup(backups, id, signal);
  return (await getBackup(backups, actor, { projectId, addonId: addon.id, backupId: id })).backup;
}

async function restore(addon: AddonView, backupId: string, name?: string) {
  const row = await restoreBackup(backups, actor, { projectId, addonId: addon.id, backupId }, name);
  await runRestore(backups, row.id, signal);
  const [restored] = await restoresInto(backups, actor, projectId, row.addon_id);
  return restored!;
}

/** Runs a shell loop inside the machine until the returned object is disposed of. */
async function writer(addon: AddonView, script: string): Promise<AsyncDisposable> {
  const { process, letGo } = await start(guestOf(addon), { argv: ["sh", "-c", script] }, signal);
  const reading = (async () => {
    for await (const _ of process.output);
  })().catch(() => {});
  return {
    [Symbol.asyncDispose]: async () => {
      letGo();
      await reading;
    },
  };
}

describe("PostgreSQL", () => {
  let addon: AddonView;
  /** Returns the sum of all balances and the number of accounts. */
  const look = (of = addon) => sql(of, "select sum(balance), count(*) from accounts;");
  beforeAll(async () => {
    addon = await running("postgres", "orders");
    await sql(
      addon,
      `create table accounts (id serial primary key, balance bigint not null, filler text);
       insert into accounts (balance, filler) select 100, repeat(md5(n::text), 4) from generate_series(1, 50000) n;
       create table history (at timestamptz default now(), n int);
       alter table accounts owner to kontor; alter table history owner to kontor;`,
    );
  }, 180_000);

  test("a backup made during writes is consistent, and its restore returns a dropped table", async () => {
    const transfer = `begin; update accounts set balance = balance - 5 where id = (select 2 + floor(random() * 49999)::int); insert into history (n) values (1); update accounts set balance = balance + 5 where id = 1; commit;`;
    await using _ = await writer(
      addon,
      `while :; do echo "${transfer}"; done | setpriv --reuid postgres --regid postgres --init-groups psql -qX -d kontor`,
    );
    await expect
      .poll(async () => Number(await sql(addon, "select count(*) from history;")), { timeout: 30_000 })
      .toBeGreaterThan(50);
    const machines = await machinesNow();
    const backup = await backUp(addon);
    expect(backup).toMatchObject({ status: "completed", error: null, kind: "manual" });
    expect(backup.verified_at).not.toBeNull();
    expect(await machinesNow()).toBe(machines);
    await _[Symbol.asyncDispose]();
    expect(await look()).toBe("5000000|50000\n");

    await sql(addon, "drop table accounts;");
    const restored = await restore(addon, backup.id);
    expect(restored).toMatchObject({ status: "completed", error: null });
    expect(await look()).toBe("5000000|50000\n");
    // The content from before the restore is kept as a regular backup.
    const kept = (await listBackups(backups, actor, projectId, addon.id)).find(
      ({ kind }) => kind === "safety",
    );
    expect(kept).toMatchObject({ id: restored.safety_backup_id, status: "completed" });
    const names = await sql(addon, "select datname from pg_database where datname like 'kontor\\_%';");
    expect(names).toBe("");
  }, 300_000);

  test("restores a complete backup into a new add-on", async () => {
    const backup = await backUp(addon);
    const restored = await restore(addon, backup.id, "orders-copy");
    expect(restored).toMatchObject({ status: "completed", error: null, safety_backup_id: null });
    const copy = (await findAddon(backups.app.db, restored.addon_id))!;
    expect(copy).toMatchObject({ name: "orders-copy", kind: "postgres" });
    expect(await look(copy)).toBe(await look());
  }, 300_000);

  test("a backup whose stored bytes changed fails its test restore and is deleted", async () => {
    const before = (await backups.blobs.list(`backups/${addon.id}/`)).length;
    const { id } = await createBackup(backups, actor, projectId, addon.id);
    onKillPoint(async (point) => {
      if (point !== "backup.stored") return;
      const file = await open(join(store, `backups/${addon.id}/${id}.dump`), "r+");
      const { size } = await file.stat();
      await file.write(Buffer.from("wrong"), 0, 5, Math.floor(size / 2));
      await file.close();
    });
    await runBackup(backups, id, signal);
    const { backup } = await getBackup(backups, actor, { projectId, addonId: addon.id, backupId: id });
    expect(backup).toMatchObject({ status: "failed", verified_at: null });
    expect(backup.error).toMatch(
      /differ from the bytes that were stored|pg_restore|differs from the database/,
    );
    expect(await backups.blobs.list(`backups/${addon.id}/`)).toHaveLength(before);
  }, 300_000);
});

describe("Redis", () => {
  let addon: AddonView;
  beforeAll(async () => {
    addon = await running("redis", "sessions");
  }, 180_000);

  test("backs up a database during writes, and restores it with values and expiries", async () => {
    await redis(
      addon,
      "EVAL",
      "for i = 1, 20000 do redis.call('HSET', 'user:' .. i, 'n', i, 'x', i * 2) end",
      "0",
    );
    await redis(addon, "SET", "soon", "1", "PX", "1500");
    await redis(addon, "SET", "later", "1", "EX", "86400");
    await redis(addon, "-n", "3", "SADD", "set", "a", "b", "c");
    let backup;
    {
      await using _ = await writer(
        addon,
        `n=0; while :; do n=$((n+1)); echo "INCR counter"; echo "RPUSH log $n"; done | sh /usr/local/lib/kontor-addon/admin`,
      );
      await expect
        .poll(async () => Number(await redis(addon, "GET", "counter")), { timeout: 30_000 })
        .toBeGreaterThan(100);
      backup = await backUp(addon);
    }
    expect(backup).toMatchObject({ status: "completed", error: null });
    await redis(addon, "FLUSHALL");
    const restored = await restore(addon, backup.id);
    expect(restored).toMatchObject({ status: "completed", error: null });
    expect(await redis(addon, "HGET", "user:777", "x")).toBe("1554\n");
    expect(await redis(addon, "-n", "3", "SCARD", "set")).toBe("3\n");
    expect(Number(await redis(addon, "TTL", "later"))).toBeGreaterThan(80_000);
    // The list has exactly the numbers up to the counter, so both are from the same moment.
    const counter = Number(await redis(addon, "GET", "counter"));
    const length = Number(await redis(addon, "LLEN", "log"));
    expect(counter - length === 0 || counter - length === 1).toBe(true);
    // Writes after this point survive a restart of the process.
    await redis(addon, "SET", "after", "kept");
    await backups.addons.whileStopped(addon.id, async () => {});
    expect(await redis(addon, "GET", "after")).toBe("kept\n");
    expect(await redis(addon, "HGET", "user:777", "x")).toBe("1554\n");
  }, 300_000);

  test("a backup whose bytes Redis refuses fails its test restore", async () => {
    const { id } = await createBackup(backups, actor, projectId, addon.id);
    onKillPoint(async (point) => {
      if (point !== "backup.stored") return;
      const file = await open(join(store, `backups/${addon.id}/${id}.rdb`), "r+");
      await file.write(Buffer.from("wrong"), 0, 5, 5_000);
      await file.close();
    });
    await runBackup(backups, id, signal);
    const { backup } = await getBackup(backups, actor, { projectId, addonId: addon.id, backupId: id });
    expect(backup).toMatchObject({ status: "failed", blob_key: null });
    expect(backup.error).toContain("differ from the bytes that were stored");
  }, 300_000);
});
