import pg from "pg";
import { expect, onTestFinished, test } from "vitest";
import { z } from "zod";
import { clientOptions } from "#db/db.ts";
import { testDatabase } from "../../test/harness.ts";
import { routeNotFound } from "./errors.ts";
import { InvalidInput, problemsOf } from "./input/input-problems.ts";
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
    body: { code: "unavailable", detail: "Every database connection is busy at the moment; retry later." },
    isFault: false,
  });
});

test("explains a text that does not match its pattern with the schema's own sentence", () => {
  const words = "must be lower-case letters";
  const schema = z.object({ name: z.string().regex(/^[a-z]+$/, { error: words }) });
  const { error } = schema.safeParse({ name: "No" });
  const problems = error!.issues.flatMap((issue) => problemsOf(issue, schema, "body"));
  expect(renderError("platform", new InvalidInput(problems), "req").body.detail).toEqual([
    { loc: ["body", "name"], msg: `Value error, ${words}`, type: "value_error" },
  ]);
});

test("repeats invalid input as one string on every API, with the first three problems by name", () => {
  const schema = z.object({ a: z.number(), b: z.number(), c: z.number(), d: z.number() });
  const { error } = schema.safeParse({});
  const problems = error!.issues.flatMap((issue) => problemsOf(issue, schema, "body"));
  const message = "a: is required; b: is required; c: is required; and 1 more";
  for (const api of ["platform", "sandbox", "agent"] as const)
    expect(renderError(api, new InvalidInput(problems), "req").body.message).toBe(message);
});

test("repeats the sentence of an error as `message`", () => {
  const { body } = renderError("sandbox", routeNotFound("/v1/sandboxes"), "req");
  const sentence = "This address does not exist; did you mean /v1/sandboxes?";
  expect(body).toEqual({ detail: sentence, message: sentence, code: "not_found" });
});
