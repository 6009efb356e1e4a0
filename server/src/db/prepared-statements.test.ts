import { sql } from "kysely";
import { expect, test } from "vitest";
import { testDatabase } from "../../test/harness.ts";
import { openDatabase } from "./db.ts";
import { StatementNames } from "./prepared-statements.ts";

const { connection } = await testDatabase();

test("prepares a repeated statement once per connection, with the same result", async () => {
  const opened = openDatabase(connection, { maxConnections: 1, onError: () => {} });
  const { db } = opened;
  const ask = async (n: number) => (await sql<{ n: number }>`select ${n}::int + 1 as n`.execute(db)).rows;
  for (let n = 0; n < 10; n += 1) expect(await ask(n)).toEqual([{ n: n + 1 }]);
  const prepared = await sql<{ statement: string }>`select statement from pg_prepared_statements`.execute(db);
  expect(prepared.rows).toEqual([{ statement: "select $1::int + 1 as n" }]);
  await expect(sql`select ${"x"}::int + 1 as n`.execute(db)).rejects.toThrow("invalid input syntax");
  expect(await ask(41)).toEqual([{ n: 42 }]);
  await opened.close();
});

test("names no statement that runs once, and at most a hundred statements", () => {
  const names = new StatementNames();
  for (let n = 0; n < 5000; n += 1) expect(names.nameOf(`select ${n}`)).toBeUndefined();
  const often = (text: string) => Array.from({ length: 6 }, () => names.nameOf(text)).at(-1);
  const given = Array.from({ length: 200 }, (_, n) => often(`select $1 + ${n}`));
  expect(new Set(given.filter((name) => name !== undefined)).size).toBe(100);
  expect(often("select $1 + 0")).toBe(given[0]);
});
