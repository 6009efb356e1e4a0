import { sql } from "kysely";
import { expect, onTestFinished, test } from "vitest";
import { testDatabase } from "../../test/harness.ts";
import { openDatabase, transaction } from "./db.ts";

const { db, connection } = await testDatabase();

test("reads a bigint as a number, and rejects one beyond the safe range", async () => {
  const one = await sql<{ n: unknown }>`select 9007199254740991::bigint as n, count(*) as c`.execute(db);
  expect(one.rows).toEqual([{ n: 9_007_199_254_740_991, c: 1 }]);
  await expect(sql`select 9007199254740993::bigint`.execute(db)).rejects.toThrow(
    "larger than the largest number",
  );
});

test("reads times as Dates and parses json, and keeps numeric as text", async () => {
  const { rows } =
    await sql`select '2030-01-01T00:00:00Z'::timestamptz as at, '{"a":[1]}'::jsonb as j, 1.10 as n`.execute(
      db,
    );
  expect(rows).toEqual([{ at: new Date("2030-01-01T00:00:00Z"), j: { a: [1] }, n: "1.10" }]);
});

test("joins an outer transaction, and rolls back with it", async () => {
  const failing = transaction(db, async (tx) => {
    await transaction(tx, (inner) =>
      inner.insertInto("users").values({ email: "a@b.test", name: "a", password_hash: "!" }).execute(),
    );
    throw new Error("outer");
  });
  await expect(failing).rejects.toThrow("outer");
  expect(await db.selectFrom("users").selectAll().execute()).toEqual([]);
});

test("runs upkeep queries while requests hold every other connection", async () => {
  const opened = openDatabase(connection, { maxConnections: 1, onError: () => {} });
  onTestFinished(() => opened.close());
  const held = await opened.pool.connect();
  try {
    expect((await sql`select 1 as one`.execute(opened.upkeep)).rows).toEqual([{ one: 1 }]);
    expect(opened.pool.idleCount).toBe(0);
  } finally {
    held.release();
  }
});
