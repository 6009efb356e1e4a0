import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Writable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { gzipSync } from "node:zlib";
import { sql } from "kysely";
import pg from "pg";
import { afterAll, expect, test } from "vitest";
import { testDatabase } from "../../test/harness.ts";
import { copyOut } from "./copy.ts";
import { clientOptions } from "./db.ts";
import { dumpDatabase, listVolumes } from "./dump.ts";
import { loadDatabase, readDump, refuseFullDatabase, refuseUnfinishedLoad } from "./load.ts";
import { becomeSoleServer } from "./sole-server.ts";

const directory = mkdtempSync(join(tmpdir(), "kontor-dump-"));
afterAll(() => rmSync(directory, { recursive: true }));
const source = await testDatabase();
const target = await testDatabase({ empty: true });
const broken = await testDatabase({ empty: true });
const second = await testDatabase({ empty: true });
const incomplete = await testDatabase({ empty: true });
const hostId = "host_of_the_dump";
const awkward = "a\tb\n\\N 'quoted' \u{1F980}";

test("loads every row, sequence and foreign key of a dump into an empty database", async () => {
  await source.db
    .insertInto("users")
    .values({ email: "a@b.test", name: awkward, password_hash: "!" })
    .execute();
  // More rows than one chunk of the connection holds, so that the copy reaches its memory bound.
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

test("refuses a database that has tables, and changes nothing in it", async () => {
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

test("refuses to start a server on a database whose load failed", async () => {
  writeFileSync(join(directory, "one", "public.users.rows.gz"), gzipSync("not a row\n"));
  await expect(loadDatabase(broken.connection, join(directory, "one"), hostId)).rejects.toThrow(
    "invalid input syntax for type uuid",
  );
  await expect(refuseUnfinishedLoad(broken.connection)).rejects.toThrow("a restore that did not finish");
  await expect(refuseFullDatabase(broken.connection)).rejects.toThrow("a restore that did not finish");
});

test("loads times unchanged when the databases have different formats", async () => {
  const { rows } = await sql<{ name: string }>`select current_database() as name`.execute(source.db);
  await sql`alter database ${sql.id(rows[0]!.name)} set datestyle = 'SQL, DMY'`.execute(source.db);
  await dumpDatabase(source.connection, join(directory, "two"));
  await loadDatabase(second.connection, join(directory, "two"), hostId);
  const times = sql`select extract(epoch from created_at) as at from users order by id`;
  expect((await times.execute(second.db)).rows).toEqual((await times.execute(source.db)).rows);
});

test("lists the volumes that have data, with their regions", async () => {
  await source.db.transaction().execute(async (tx) => {
    // The referenced workspace, region and host do not exist.
    await sql`set local session_replication_role = replica`.execute(tx);
    await sql`insert into sandbox_volumes (id, workspace_id, name, size_gb, region, host_id, is_made, created_at)
      select id, gen_random_uuid(), id, 1, 'r1', 'h1', is_made, now()
      from (values ('vol_made', true), ('vol_empty', false)) as volumes (id, is_made)`.execute(tx);
  });
  expect(await listVolumes(source.connection)).toEqual([{ id: "vol_made", region: "r1" }]);
});

test("fails when the dump lacks the file of a table, or names one outside of it", async () => {
  const dump = join(directory, "three");
  cpSync(join(directory, "two"), dump, { recursive: true });
  rmSync(join(dump, "public.workspaces.rows.gz"));
  await expect(loadDatabase(incomplete.connection, dump, hostId)).rejects.toThrow(
    "public.workspaces.rows.gz",
  );
  const text = readFileSync(join(dump, "dump.json"), "utf8");
  writeFileSync(join(dump, "dump.json"), text.replace("public.users.rows.gz", "../two/public.users.rows.gz"));
  await expect(readDump(dump)).rejects.toThrow("a format that this Kontor cannot read");
});

test("ends the connection when the disk is full in the middle of a table", async () => {
  const client = new pg.Client(clientOptions(source.connection));
  client.on("error", () => {});
  await client.connect();
  const rows = copyOut(client, "copy (select repeat('x', 1000) from generate_series(1, 100000)) to stdout");
  const full = new Writable({ write: (_chunk, _encoding, done) => done(new Error("ENOSPC")) });
  await expect(pipeline(rows, full)).rejects.toThrow("ENOSPC");
  await client.end();
});
