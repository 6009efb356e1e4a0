import { expect, test } from "vitest";
import { findFaults, findSchemaFault } from "./json-schema.ts";

const person = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer", minimum: 0 } },
  required: ["name"],
  additionalProperties: false,
};

const endless = { type: "string", pattern: "^(a+)+$" };
const runsAway = `${"a".repeat(40)}!`;

test("returns no fault for a valid value, and the field of each fault for an invalid value", async () => {
  expect(await findSchemaFault("a", person)).toBeUndefined();
  expect(await findFaults("a", person, { name: "Ada", age: 3 })).toEqual([]);
  const faults = (await findFaults("a", person, { age: -1, other: 1 })).join("\n");
  expect(faults).toContain("name");
  expect(faults).toContain("/age");
});

test("aborts a pattern with catastrophic backtracking and rejects the value", async () => {
  expect(await findFaults("a", endless, runsAway)).toEqual(["it takes too long to check"]);
  expect(await findFaults("a", endless, "aaa")).toEqual([]);
});

test("rejects an unusable schema with a reason", async () => {
  expect(await findSchemaFault("a", { $ref: "#/nowhere" })).toContain("not a usable JSON Schema");
  expect(await findSchemaFault("a", { type: "string", pattern: "(" })).toContain("not a usable JSON Schema");
  let deep: Record<string, unknown> = {};
  for (let n = 0; n < 60; n += 1) deep = { items: deep };
  expect(await findSchemaFault("a", deep)).toContain("levels deep");
  expect(await findSchemaFault("a", { description: "x".repeat(70_000) })).toContain("bytes");
});

test("runs other checks while a pattern with catastrophic backtracking is aborted", async () => {
  let turns = 0;
  const timer = setInterval(() => (turns += 1), 10);
  const bad = Array.from({ length: 3 }, () => findFaults("a", endless, runsAway));
  const good = findFaults("a", endless, "aaa");
  for (const faults of await Promise.all(bad)) expect(faults).toEqual(["it takes too long to check"]);
  expect(await good).toEqual([]);
  clearInterval(timer);
  expect(turns).toBeGreaterThan(10);
});

test("checks values of other owners while one owner's patterns backtrack endlessly", async () => {
  let left = 4;
  const bad = Array.from({ length: left }, () =>
    findFaults("a", endless, runsAway).finally(() => {
      left -= 1;
    }),
  );
  for (let count = 0; count < 20; count += 1) expect(await findFaults("b", endless, "aaa")).toEqual([]);
  expect(left).toBeGreaterThan(2);
  await Promise.all(bad);
});
