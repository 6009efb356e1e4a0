import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { sql } from "kysely";
import { afterAll, expect, test } from "vitest";
import { testDatabase } from "../../test/harness.ts";
import { dumpDatabase } from "./dump.ts";
import { loadDatabase, readDump, refuseFullDatabase, refuseUnfinishedLoad } from "./load.ts";
import { becomeSoleServer } from "./sole-server.ts";

const directory = mkdtempSync(join(tmpdir(), "kontor-dump-"));
afterAll(() => rmSync(directory, { recursive: true }));
const source = await testDatabase();
const target = await testDatabase({ empty: true });
const broken = await testDatabase({ empty: true });
const hostId = "host_of_the_dump";
const awkward = "a\tb\n\\N 'quoted' \u{1F980}";

test("loads every row, sequence and foreign key of a dump into an empty database", async () => {
  await source.db
    .insertInto("users")
    .values({ email: "a@b.test", name: awkward, password_hash: "!" })
    .execute();
  // More than one chunk of the wire, so that the copy meets its own bounds.
  await sql`insert into users (email, name, password_hash)
    select n || '@many.test', repeat('x', 2000), '!' from generate_series(1, 2000) n`.execute(source.db);
  await sql`select graphile_worker.add_job('a_task', '{"a":1}'::json)`.execute(source.db);
  await dumpDatabase(source.connection, join(directory, "one"));

  await loadDatabase(target.connection, join(directory, "one"), hostId);

  const digest = sql<{
    hash: string;
  }>`select md5(string_agg(u::text, ',' order by u.id)) as hash from users u`;
  expect((await digest.execute(target.db)).rows).toEqual((await digest.execute(source.db)).rows);
  const jobs = sql`select task_identifier from graphile_worker.jobs`;
  expect((await jobs.execute(target.db)).rows).toEqual([{ task_identifier: "a_task" }]);
  const keys = sql`select conname, pg_get_constraintdef(oid) as definition from pg_constraint order by 1, 2`;
  expect((await keys.execute(target.db)).rows).toEqual((await keys.execute(source.db)).rows);
  const triggers = sql`select tgname, tgenabled from pg_trigger where not tgisinternal order by 1`;
  expect((await triggers.execute(target.db)).rows).toEqual((await triggers.execute(source.db)).rows);
  const ids = sql<{ ids: string[] }>`select array_agg(id::text order by id) as ids from graphile_worker.jobs`;
  await sql`select graphile_worker.add_job('b_task', '{}'::json)`.execute(target.db);
  expect((await ids.execute(target.db)).rows[0]?.ids).toHaveLength(2);
  await expect(refuseUnfinishedLoad(target.connection)).resolves.toBeUndefined();
});

test("refuses a database that has tables, and leaves it as it was", async () => {
  await expect(refuseFullDatabase(source.connection)).rejects.toThrow("the database is not empty");
  await expect(loadDatabase(source.connection, join(directory, "one"), hostId)).rejects.toThrow("not empty");
  await expect(refuseUnfinishedLoad(source.connection)).resolves.toBeUndefined();
});

test("refuses to load while a server of the host runs", async () => {
  const server = await becomeSoleServer(broken.connection, hostId, () => {});
  try {
    await expect(loadDatabase(broken.connection, join(directory, "one"), hostId)).rejects.toThrow(
      "a server runs on this database",
    );
  } finally {
    await server?.release();
  }
});

test("refuses a dump of a newer Kontor before it changes anything", async () => {
  const text = readFileSync(join(directory, "one", "dump.json"), "utf8");
  const dump = JSON.parse(text) as { migrations: string[] };
  dump.migrations.push("9999_of_the_future.sql");
  writeFileSync(join(directory, "one", "dump.json"), JSON.stringify(dump));
  try {
    await expect(readDump(join(directory, "one"))).rejects.toThrow("restore with a newer one");
    await expect(loadDatabase(broken.connection, join(directory, "one"), hostId)).rejects.toThrow("newer");
    await expect(refuseFullDatabase(broken.connection)).resolves.toBeUndefined();
  } finally {
    writeFileSync(join(directory, "one", "dump.json"), text);
  }
});

test("keeps servers off a database whose load failed", async () => {
  writeFileSync(join(directory, "one", "public.users.rows.gz"), gzipSync("not a row\n"));
  await expect(loadDatabase(broken.connection, join(directory, "one"), hostId)).rejects.toThrow(
    "invalid input syntax for type uuid",
  );
  await expect(refuseUnfinishedLoad(broken.connection)).rejects.toThrow("a restore that did not finish");
  await expect(refuseFullDatabase(broken.connection)).rejects.toThrow("a restore that did not finish");
});
