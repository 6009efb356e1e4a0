import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sql } from "kysely";
import { expect, onTestFinished, test } from "vitest";
import { testDatabase } from "../../test/harness.ts";
import type { Connection } from "./db.ts";
import type { Db } from "#schema.ts";
import { dumpDatabase } from "./dump.ts";
import { refuseUnfinishedLoad } from "./load.ts";
import { migrate, MigrationError, readMigrations } from "./migrate.ts";
import { becomeSoleServer } from "./sole-server.ts";
import {
  databaseActivity,
  databaseFacts,
  finishRollback,
  recordWorkStart,
  readUpgrade,
  upgradeFiles,
  workStartedAt,
  writeUpgrade,
} from "./upgrade.ts";

const hostId = "host_of_the_upgrade";
const state = { format: 1 as const, from: "/code/old", to: "/code/new", started_at: "2030-01-01T00:00:00Z" };
const extra = {
  name: "9998_extra.sql",
  sql: "alter table users add column extra text; create type mood as enum ('ok')",
};
const broken = { name: "9999_broken.sql", sql: "update users set name = 'lost'; select 1 / 0" };

/** Creates a data directory with an upgrade whose database copy exists, and a database with one person. */
async function upgrading(): Promise<{ dataDir: string; connection: Connection; db: Db }> {
  const dataDir = mkdtempSync(join(tmpdir(), "kontor-upgrade-"));
  onTestFinished(() => rmSync(dataDir, { recursive: true }));
  const { connection, db } = await testDatabase();
  await addPerson(db, "before@test");
  mkdirSync(upgradeFiles(dataDir).directory);
  await dumpDatabase(connection, upgradeFiles(dataDir).copy);
  writeUpgrade(dataDir, state);
  return { dataDir, connection, db };
}

async function addPerson(db: Db, email: string): Promise<void> {
  await db.insertInto("users").values({ email, name: "A", password_hash: "!" }).execute();
}

const emails = async (db: Db) =>
  (await db.selectFrom("users").select("email").orderBy("email").execute()).map(({ email }) => email);

const tables = async (db: Db) =>
  (
    await sql`select table_schema, table_name, column_name, data_type from information_schema.columns
      where table_schema in ('public', 'graphile_worker') order by 1, 2, 3`.execute(db)
  ).rows;

const types = async (db: Db) =>
  (await sql`select typname from pg_type where typname = 'mood'`.execute(db)).rows.length;

test("restores tables and rows from the copy after a migration that failed", async () => {
  const { dataDir, connection, db } = await upgrading();
  const before = await tables(db);
  const { migrations } = await databaseFacts(connection);
  await expect(migrate(connection, [...readMigrations(), extra, broken])).rejects.toThrow(MigrationError);
  expect(await tables(db)).not.toEqual(before);
  expect(await finishRollback(connection, { dataDir, hostId, code: state.from })).toBe("restored");
  expect(await tables(db)).toEqual(before);
  expect(await types(db)).toBe(0);
  expect(await emails(db)).toEqual(["before@test"]);
  expect((await databaseFacts(connection)).migrations).toEqual(migrations);
  expect(await migrate(connection)).toEqual([]);
  expect(readUpgrade(dataDir)).toBeUndefined();
});

test("keeps rows of the new server if it ran no migration", async () => {
  const { dataDir, connection, db } = await upgrading();
  await addPerson(db, "meanwhile@test");
  expect(await finishRollback(connection, { dataDir, hostId, code: state.from })).toBe("kept");
  expect(await emails(db)).toEqual(["before@test", "meanwhile@test"]);
});

test("refuses the old code while the link leads to the new code", async () => {
  const { dataDir, connection, db } = await upgrading();
  const to = join(dataDir, "new");
  mkdirSync(to);
  symlinkSync(to, join(dataDir, "current"));
  writeUpgrade(dataDir, { ...state, to });
  await migrate(connection, [...readMigrations(), extra]);
  await addPerson(db, "meanwhile@test");
  await expect(finishRollback(connection, { dataDir, hostId, code: state.from })).rejects.toThrow(
    `an upgrade to ${to} is in progress`,
  );
  expect(await emails(db)).toEqual(["before@test", "meanwhile@test"]);
  expect(readUpgrade(dataDir)?.to).toBe(to);
});

test("restores again after a restore that was killed", async () => {
  const { dataDir, connection, db } = await upgrading();
  await sql.raw("create schema kontor_load_unfinished").execute(db);
  await sql.raw("drop schema graphile_worker cascade").execute(db);
  await sql.raw("drop table migrations").execute(db);
  expect(await finishRollback(connection, { dataDir, hostId, code: state.from })).toBe("restored");
  await refuseUnfinishedLoad(connection);
  expect(await emails(db)).toEqual(["before@test"]);
});

test("rolls back only for the old code, and never under a running server", async () => {
  const { dataDir, connection, db } = await upgrading();
  await migrate(connection, [...readMigrations(), extra]);
  const here = { dataDir, hostId };
  expect(await finishRollback(connection, { ...here, code: state.to })).toBeUndefined();
  expect(await finishRollback(connection, here)).toBeUndefined();
  const sole = await becomeSoleServer(connection, hostId, () => {});
  await expect(finishRollback(connection, { ...here, code: state.from })).rejects.toThrow("a server runs");
  await sole?.release();
  expect(await types(db)).toBe(1);
  expect(readUpgrade(dataDir)).toEqual(state);
});

test("records once when the new server begins to work", async () => {
  const { dataDir } = await upgrading();
  recordWorkStart(dataDir, state.from);
  expect(workStartedAt(dataDir)).toBeUndefined();
  recordWorkStart(dataDir, state.to);
  const since = workStartedAt(dataDir);
  expect(since).toBeInstanceOf(Date);
  const file = readFileSync(upgradeFiles(dataDir).worked);
  recordWorkStart(dataDir, state.to);
  expect(readFileSync(upgradeFiles(dataDir).worked)).toEqual(file);
});

test("names the file and the cure when the state of an upgrade is damaged", async () => {
  const { dataDir } = await upgrading();
  for (const text of ["", "null", '{"format":2}', '{"format":1,"from":"x","to":"/y"}']) {
    writeFileSync(upgradeFiles(dataDir).state, text);
    expect(() => readUpgrade(dataDir)).toThrow(/state\.json cannot be read .* run kontor upgrade/);
  }
});

test("counts transactions, and distinguishes a running statement from one that waits for a lock", async () => {
  const { connection, db } = await testDatabase();
  const { connection: other, db: second } = await testDatabase();
  expect((await databaseActivity(connection)).isBusy).toBe(false);
  const slow = sql`select pg_sleep(20)`.execute(db).catch(() => {});
  await expect.poll(async () => (await databaseActivity(connection)).isBusy).toBe(true);
  await sql`select pg_terminate_backend(pid) from pg_stat_activity where query like 'select pg_sleep(20)%'`.execute(
    db,
  );
  await slow;
  await sql`select pg_advisory_lock(1)`.execute(second);
  expect((await databaseActivity(other)).isBusy).toBe(false);
});
