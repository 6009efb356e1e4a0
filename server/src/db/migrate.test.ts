import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { sql } from "kysely";
import { expect, test } from "vitest";
import { testDatabase } from "../../test/harness.ts";
import { migrate, MigrationError, readMigrations } from "./migrate.ts";

const program = join(import.meta.dirname, "../../test/programs/migrate-once.ts");

test("migrates once when three processes start at once on an empty database", async () => {
  const { connection, db } = await testDatabase({ empty: true });
  const outputs = await Promise.all(
    [1, 2, 3].map(() => promisify(execFile)(process.execPath, [program, JSON.stringify(connection)])),
  );
  const ran = outputs
    .map(({ stdout }) => JSON.parse(stdout) as string[])
    .toSorted((a, b) => b.length - a.length);
  const names = readMigrations().map(({ name }) => name);
  expect(ran).toEqual([names, [], []]);
  const { rows } = await sql<{ name: string }>`select name from migrations order by name`.execute(db);
  expect(rows.map(({ name }) => name)).toEqual(names);
});

test("refuses to start after a change of an applied file, and names the file", async () => {
  const { connection } = await testDatabase({ empty: true });
  const first = { name: "0001_a.sql", sql: "create table a (id int)" };
  expect(await migrate(connection, [first])).toEqual(["0001_a.sql"]);
  await expect(migrate(connection, [{ ...first, sql: `${first.sql} -- x` }])).rejects.toThrow(
    new MigrationError("0001_a.sql changed after it was applied; restore its text and add a new file"),
  );
  await expect(migrate(connection, [])).rejects.toThrow("this server does not know");
});

test("rolls back a failing migration file completely, and reports the position of the error in the file", async () => {
  const { connection, db } = await testDatabase({ empty: true });
  const good = { name: "0001_good.sql", sql: "create table good (id int);" };
  const bad = { name: "0002_bad.sql", sql: "create table half (id int);\n\nselect nothing from half;" };
  await expect(migrate(connection, [good, bad])).rejects.toThrow(
    '0002_bad.sql line 3, column 8: column "nothing" does not exist',
  );
  const { rows } = await sql`select to_regclass('good') as good, to_regclass('half') as half`.execute(db);
  expect(rows).toEqual([{ good: "good", half: null }]);
  expect(await migrate(connection, [good, { ...bad, sql: "create table half (id int)" }])).toEqual([
    "0002_bad.sql",
  ]);
});
