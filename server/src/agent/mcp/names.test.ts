import { expect, test } from "vitest";
import { modelNames } from "./names.ts";

const named = (tools: string[]) => [...modelNames("set", tools).values()];

test("a name that providers take stays as it is", () => {
  expect(named(["get-sum", "a_B9"])).toEqual(["get-sum", "a_B9"]);
});

test("other characters become _, and names that would be one stay two, in any order", () => {
  const names = modelNames("set", ["files.read", "files/read", "files_read", "größe"]);
  expect(names.get("files_read")).toBe("files_read");
  expect(names.get("größe")).toBe("gr__e");
  expect(new Set(names.values()).size).toBe(4);
  const again = modelNames("set", ["größe", "files_read", "files/read", "files.read"]);
  expect(Object.fromEntries(again)).toEqual(Object.fromEntries(names));
});

test("however long and strange, a name fits and is its own", () => {
  const long = ["x".repeat(200), `${"x".repeat(200)}y`, "😀", "日本", "漢字"];
  const names = named(long);
  expect(new Set(names).size).toBe(long.length);
  for (const name of names) expect(name).toMatch(/^[A-Za-z0-9_-]{1,59}$/);
});
