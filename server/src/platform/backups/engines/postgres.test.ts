import { spawn } from "node:child_process";
import { Readable } from "node:stream";
import { afterAll, expect, test } from "vitest";
import type { Addons } from "#platform/addons/addons.ts";
import type { AddonRow } from "#platform/addons/find.ts";
import { postgres } from "./postgres.ts";
import { localPostgres } from "../testing/local-postgres.ts";

const { guest, sql } = await localPostgres();
const signal = AbortSignal.timeout(120_000);
const addonOf = (database: string) => ({ id: "a", database, username: "kontor" }) as AddonRow;
const addons = { guest: () => guest } as unknown as Addons;

async function collect(content: AsyncIterable<Buffer>): Promise<Buffer> {
  return Buffer.concat(await Array.fromAsync(content));
}

let made = 0;
/** Creates a database with one of each kind of object that a dump must contain, and returns its name. */
async function database(): Promise<string> {
  const name = `db_${++made}`;
  await sql("postgres", `create database ${name} owner kontor template template0;`);
  await sql(
    name,
    `set role kontor;
     create schema "Other place";
     create type mood as enum ('calm', 'keen');
     create table accounts (id bigserial primary key, balance numeric not null check (balance > -1000000), mood mood default 'calm', seen timestamptz default now(), "kontor_row" text, ratio float8);
     insert into accounts (balance, kontor_row, ratio) select n, 'row ' || n || chr(10) || '|ü', n / 3.0 from generate_series(1, 5000) n;
     create table "Other place"."it's a ""table""" (doc jsonb, raw bytea);
     insert into "Other place"."it's a ""table""" select jsonb_build_object('n', n), decode(md5(n::text), 'hex') from generate_series(1, 100) n;
     create table nothing ();
     create table parts (k int, v text) partition by range (k);
     create table parts_low partition of parts for values from (0) to (10);
     create table parts_high partition of parts for values from (10) to (20);
     insert into parts select n, 'v' from generate_series(0, 19) n;
     create view rich as select * from accounts where balance > 10 and mood::text in ('calm', 'keen');
     create materialized view total as select sum(balance) from accounts;
     create function twice(n int) returns int language sql immutable as 'select n * 2';
     create function stamp() returns trigger language plpgsql as 'begin new.seen = now(); return new; end';
     create trigger stamped before update on accounts for each row execute function stamp();
     create index on accounts (twice(id::int));
     select lo_from_bytea(0, convert_to('large one', 'utf8'));
     create extension pg_trgm;`,
  );
  return name;
}

async function dump(name: string) {
  return postgres.dump(guest, addonOf(name), collect, signal);
}

/** Runs the test restore of the stored bytes. */
async function testRestore(name: string, stored: Buffer, description: unknown) {
  await postgres.load(guest, addonOf(name), source(stored)(), signal);
  return postgres.compare(guest, addonOf(name), description, signal);
}

const source = (bytes: Buffer) => () => Readable.from([bytes]) as AsyncIterable<Buffer>;

test("restores tables, sequences and schema exactly", async () => {
  const name = await database();
  const { stored, description } = await dump(name);
  expect(stored.subarray(0, 5).toString()).toBe("PGDMP");
  const contents = await testRestore(name, stored, description);
  expect(contents).toMatch(/^2:[0-9a-f]{64}$/);
  // Another restore of the same bytes has the same hash.
  expect(await testRestore(name, stored, description)).toBe(contents);
});

test("backs up one moment of a database during concurrent writes", async () => {
  const name = await database();
  // Transfers between accounts keep the sum equal at every moment. Rows are added meanwhile.
  const writer = spawn(
    "/bin/sh",
    [
      "-c",
      `while :; do echo "begin; update accounts set balance = balance - 1 where id = (select 8 + floor(random() * 4992)::int); insert into nothing default values; insert into accounts (balance) values (0); update accounts set balance = balance + 1 where id = 7; commit;"; done | "$@"`,
      "sh",
      "/usr/lib/postgresql/15/bin/psql",
      "-qXd",
      name,
    ],
    {
      detached: true,
      stdio: "ignore",
      env: { ...process.env, ...(guest as unknown as { env: object }).env, PGUSER: "kontor" },
    },
  );
  afterAll(() => end());
  const end = () => {
    try {
      process.kill(-writer.pid!, "SIGKILL");
    } catch {
      // psql has ended by now.
    }
  };
  while (Number(await sql(name, "select count(*) from nothing;")) < 20);
  const { stored, description } = await dump(name);
  await testRestore(name, stored, description);
  const later = Number(await sql(name, "select count(*) from nothing;"));
  const kept = Number(await sql("kontor_try", "select count(*) from nothing;"));
  // The snapshot contains each transfer completely or not at all.
  expect(await sql("kontor_try", "select sum(balance) from accounts;")).toBe("12502500\n");
  end();
  expect(kept).toBeGreaterThan(0);
  expect(later).toBeGreaterThan(kept);
});

test("names a changed row, a missing row and a missing table after a test restore", async () => {
  const name = await database();
  const { stored } = await dump(name);
  await sql(
    name,
    `update accounts set ratio = ratio + 1e-9 where id = 17; delete from parts where k = 3; create table later (); `,
  );
  const { description } = await dump(name);
  const trial = testRestore(name, stored, description);
  await expect(trial).rejects.toThrow(
    /differs from the database: table public\.accounts has different rows; table public\.parts_low has 10 rows, not 9; .*later is missing/,
  );
});

test("treats values of equal text as equal, and detects values that moved to another column", async () => {
  const name = await database();
  await sql(
    name,
    `create table odd (d float8, q tsquery, a int[], n numeric, s text, t text, gone int);
     alter table odd drop column gone;
     insert into odd values
       (float8 'inf' - float8 'inf', to_tsquery('b & c'), '{1,null}', 1.10, 'ab', 'c'),
       ('nan', to_tsquery('a') && to_tsquery('b & c'), array_remove(array[1, null], null), 1.1, null, '');`,
  );
  const { stored, description } = await dump(name);
  await testRestore(name, stored, description);
  for (const [column, value] of [
    ["s", "'a'"],
    ["n", "1.1"],
    ["t", "null"],
    ["d", "0"],
  ] as const) {
    await sql("kontor_try", `update odd set ${column} = ${value}${column === "s" ? ", t = 'bc'" : ""};`);
    await expect(postgres.compare(guest, addonOf(name), description, signal)).rejects.toThrow(
      "odd has different rows",
    );
    await postgres.load(guest, addonOf(name), source(stored)(), signal);
  }
});

test("restores a backup whose hash an earlier version of the server made", async () => {
  const name = await database();
  const { stored } = await dump(name);
  const id = "00000000-0000-4000-8000-00000000000d";
  const work = { addons, addon: addonOf(name), id, source: source(stored), signal };
  await postgres.restore({ ...work, contents: "0".repeat(64) });
  await postgres.cleanUp({ ...work, isCompleted: true });
  expect(await sql(name, "select count(*) from accounts;")).toBe("5000\n");
});

test("rejects a truncated backup in the test restore", async () => {
  const name = await database();
  const { stored, description } = await dump(name);
  const cut = stored.subarray(0, stored.length - 20_000);
  await expect(testRestore(name, cut, description)).rejects.toThrow("pg_restore");
});

test("does not call a row cast of the owner during a backup", async () => {
  const name = await database();
  await sql(
    name,
    `set role kontor;
     create function shout(accounts) returns text language plpgsql as 'begin raise exception ''called''; end';
     create cast (accounts as text) with function shout(accounts) as assignment;`,
  );
  const { stored, description } = await dump(name);
  await testRestore(name, stored, description);
});

test("ignores the owner's session settings during a backup", async () => {
  const name = await database();
  await sql(name, "set role kontor; insert into accounts (balance, kontor_row) values (0, '€ \\');");
  await sql(
    "postgres",
    `alter database ${name} set client_encoding = 'LATIN1';
     alter database ${name} set standard_conforming_strings = off;
     alter database ${name} set quote_all_identifiers = on;
     alter database ${name} set role = 'kontor';`,
  );
  const { stored, description } = await dump(name);
  await testRestore(name, stored, description);
});

test("restores the data with the owner's settings, and keeps the old data until the clean-up", async () => {
  const name = await database();
  const { stored, description } = await dump(name);
  const contents = await testRestore(name, stored, description);
  await sql(name, "drop table accounts cascade;");
  await sql("postgres", `alter database ${name} set work_mem = '5MB';`);
  const id = "00000000-0000-4000-8000-00000000000a";
  const work = { addons, addon: addonOf(name), id, source: source(stored), contents, signal };
  expect(await postgres.isInPlace({ ...work, putsBack: true })).toBe(false);
  await postgres.restore(work);
  expect(await postgres.isInPlace({ ...work, putsBack: false })).toBe(true);
  expect(await sql(name, "select count(*), sum(balance) from accounts;")).toBe("5000|12502500\n");
  expect(await sql(name, "show work_mem;")).toBe("5MB\n");
  expect(await sql(name, "select tableowner from pg_tables where tablename = 'accounts';")).toBe("kontor\n");
  // The next server repeats the restore after a crash, and keeps later writes.
  await sql(name, "delete from accounts where id = 1;");
  await postgres.restore(work);
  expect(await sql(name, "select count(*) from accounts;")).toBe("4999\n");
  const countOldDatabases = () =>
    sql("postgres", "select count(*) from pg_database where datname like 'kontor_old%';");
  await postgres.cleanUp({ ...work, isCompleted: false });
  expect(await countOldDatabases()).toBe("1\n");
  for (let once = 0; once < 2; once++) await postgres.cleanUp({ ...work, isCompleted: true });
  expect(await countOldDatabases()).toBe("0\n");
});

test("leaves the old data in place and accessible when a restore fails", async () => {
  const name = await database();
  const { stored } = await dump(name);
  const id = "00000000-0000-4000-8000-00000000000b";
  const work = { addons, addon: addonOf(name), id, contents: null, signal };
  const cut = source(stored.subarray(0, stored.length / 2));
  await expect(postgres.restore({ ...work, source: cut })).rejects.toThrow("pg_restore");
  const other = { ...work, source: source(stored), contents: "2:another" };
  await expect(postgres.restore(other)).rejects.toThrow("differs from the backup");
  expect(await sql(name, "select count(*) from accounts;")).toBe("5000\n");
  const countOldDatabases = await sql(
    "postgres",
    "select count(*) from pg_database where datname like 'kontor_new%';",
  );
  expect(countOldDatabases).toBe("0\n");
});

test("disconnects clients while the databases are swapped, and lets them reconnect", async () => {
  const name = await database();
  const { stored } = await dump(name);
  const sleeper = sql(name, "select pg_sleep(60);").then(
    () => "slept",
    () => "sent away",
  );
  while (
    (await sql("postgres", `select count(*) from pg_stat_activity where datname = '${name}';`)) !== "1\n"
  );
  const id = "00000000-0000-4000-8000-00000000000c";
  await postgres.restore({
    addons,
    addon: addonOf(name),
    id,
    source: source(stored),
    contents: null,
    signal,
  });
  expect(await sleeper).toBe("sent away");
  expect(await sql(name, "select count(*) from accounts;")).toBe("5000\n");
});
