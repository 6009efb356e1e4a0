import pg from "pg";
import { expect, onTestFinished, test } from "vitest";
import { clientOptions } from "#db/db.ts";
import { testDatabase } from "../../test/harness.ts";
import { renderError } from "./render-error.ts";

const { connection } = await testDatabase({ empty: true });

test("renders a 503 with Retry-After when every database connection is busy", async () => {
  const pool = new pg.Pool({ ...clientOptions(connection), max: 1, connectionTimeoutMillis: 50 });
  onTestFinished(() => pool.end());
  const held = await pool.connect();
  onTestFinished(() => held.release());
  const error = await pool.query("select 1").catch((cause: unknown) => cause);
  expect(renderError("platform", error, "req")).toMatchObject({
    status: 503,
    headers: { "retry-after": "2" },
    body: { code: "unavailable", detail: "Every database connection is busy at the moment." },
    isFault: false,
  });
});
