import { expect, test } from "vitest";
import { faultsOf, whyNotSchema } from "./json-schema.ts";

const person = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer", minimum: 0 } },
  required: ["name"],
  additionalProperties: false,
};

test("a value that fits has no faults, one that does not is told where", () => {
  expect(whyNotSchema(person)).toBeUndefined();
  expect(faultsOf(person, { name: "Ada", age: 3 })).toEqual([]);
  const faults = faultsOf(person, { age: -1, other: 1 }).join("\n");
  expect(faults).toContain("name");
  expect(faults).toContain("/age");
});

test("a pattern that runs away is stopped, and fits nothing", () => {
  const schema = { type: "string", pattern: "^(a+)+$" };
  expect(faultsOf(schema, `${"a".repeat(40)}!`)).toEqual(["it takes too long to check"]);
  expect(faultsOf(schema, "aaa")).toEqual([]);
});

test("what can't be used is refused with its reason", () => {
  expect(whyNotSchema({ $ref: "#/nowhere" })).toContain("no JSON Schema");
  expect(whyNotSchema({ type: "string", pattern: "(" })).toContain("no JSON Schema");
  let deep: Record<string, unknown> = {};
  for (let n = 0; n < 60; n += 1) deep = { items: deep };
  expect(whyNotSchema(deep)).toContain("levels deep");
  expect(whyNotSchema({ description: "x".repeat(70_000) })).toContain("bytes");
});
