import { expect, test } from "vitest";
import { faultsOf, whyNotSchema } from "./json-schema.ts";

const person = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer", minimum: 0 } },
  required: ["name"],
  additionalProperties: false,
};

test("a value that fits has no faults, one that does not is told where", async () => {
  expect(await whyNotSchema(person)).toBeUndefined();
  expect(await faultsOf(person, { name: "Ada", age: 3 })).toEqual([]);
  const faults = (await faultsOf(person, { age: -1, other: 1 })).join("\n");
  expect(faults).toContain("name");
  expect(faults).toContain("/age");
});

test("a pattern that runs away is stopped, and fits nothing", async () => {
  const schema = { type: "string", pattern: "^(a+)+$" };
  expect(await faultsOf(schema, `${"a".repeat(40)}!`)).toEqual(["it takes too long to check"]);
  expect(await faultsOf(schema, "aaa")).toEqual([]);
});

test("what can't be used is refused with its reason", async () => {
  expect(await whyNotSchema({ $ref: "#/nowhere" })).toContain("no JSON Schema");
  expect(await whyNotSchema({ type: "string", pattern: "(" })).toContain("no JSON Schema");
  let deep: Record<string, unknown> = {};
  for (let n = 0; n < 60; n += 1) deep = { items: deep };
  expect(await whyNotSchema(deep)).toContain("levels deep");
  expect(await whyNotSchema({ description: "x".repeat(70_000) })).toContain("bytes");
});

test("a pattern that runs away stops nothing else, and what is asked after it is answered", async () => {
  const schema = { type: "string", pattern: "^(a+)+$" };
  let turns = 0;
  const timer = setInterval(() => (turns += 1), 10);
  const bad = Array.from({ length: 3 }, () => faultsOf(schema, `${"a".repeat(40)}!`));
  const good = faultsOf(schema, "aaa");
  for (const faults of await Promise.all(bad)) expect(faults).toEqual(["it takes too long to check"]);
  expect(await good).toEqual([]);
  clearInterval(timer);
  expect(turns).toBeGreaterThan(10);
});
