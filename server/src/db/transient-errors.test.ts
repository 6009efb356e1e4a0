import pg from "pg";
import { expect, test } from "vitest";
import { isTransient } from "./transient-errors.ts";

const withCode = (code: string, more: object = {}) => Object.assign(new Error("no"), { code, ...more });

test.each(["08006", "40001", "40P01", "53300", "57P01", "57P03", "ECONNREFUSED", "ECONNRESET"])(
  "treats %s as transient",
  (code) => expect(isTransient(withCode(code))).toBe(true),
);

test.each(["23505", "22021", "42P01", "57014", "ENOENT", "invalid_request"])(
  "treats %s as permanent",
  (code) => expect(isTransient(withCode(code))).toBe(false),
);

test("treats connection failures and connection timeouts as transient", async () => {
  for (const host of ["127.0.0.1", "/nowhere"]) {
    const client = new pg.Client({ host, port: 9, connectionTimeoutMillis: 5_000 });
    expect(await client.connect().catch(isTransient)).toBe(true);
  }
  expect(isTransient(new Error("timeout exceeded when trying to connect"))).toBe(true);
  expect(isTransient(new Error("Connection terminated unexpectedly"))).toBe(true);
  expect(isTransient(new Error("Something else"))).toBe(false);
  expect(isTransient("08006")).toBe(false);
});
