import { expect, test } from "vitest";
import { modelNames } from "./names.ts";

const namesOf = (tools: string[]) => [...modelNames("set", tools).values()];

test("keeps a tool's name that model providers accept", () => {
  expect(namesOf(["get-sum", "a_B9"])).toEqual(["get-sum", "a_B9"]);
});

test("replaces other characters of a tool's name by _, and keeps colliding names distinct in any order", () => {
  const names = modelNames("set", ["files.read", "files/read", "files_read", "größe"]);
  expect(names.get("files_read")).toBe("files_read");
  expect(names.get("größe")).toBe("gr__e");
  expect(new Set(names.values()).size).toBe(4);
  const again = modelNames("set", ["größe", "files_read", "files/read", "files.read"]);
  expect(Object.fromEntries(again)).toEqual(Object.fromEntries(names));
});

test("makes a unique valid name of any long or unusual tool name", () => {
  const long = ["x".repeat(200), `${"x".repeat(200)}y`, "😀", "日本", "漢字"];
  const names = namesOf(long);
  expect(new Set(names).size).toBe(long.length);
  for (const name of names) expect(name).toMatch(/^[A-Za-z0-9_-]{1,59}$/);
});
