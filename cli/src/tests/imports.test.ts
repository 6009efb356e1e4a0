import { expect, test } from "vitest";
import { findDependents, importsIn } from "./imports.ts";

test("finds imports of every form, and leaves out type imports and packages", () => {
  const source = `
    import { readFileSync } from "node:fs";
    import type { Clock } from "#lib/clock.ts";
    import pg from "pg";
    import {
      type Db,
      openDatabase,
    } from "#db/db.ts";
    import "./side-effect.ts";
    export { run } from "../exec/run.ts";
    const lazy = await import("./lazy.ts");
    const program = new URL("../../test/programs/walker.ts", import.meta.url);
    import { exec } from "@kontor/runtime/exec.ts";
    const text = "neither ./this.ts nor that";
  `;
  expect(importsIn(source, "server/src/sandbox/code/code.ts").toSorted()).toEqual([
    "runtime/src/exec.ts",
    "server/src/db/db.ts",
    "server/src/sandbox/code/lazy.ts",
    "server/src/sandbox/code/side-effect.ts",
    "server/src/sandbox/exec/run.ts",
    "server/src/test/programs/walker.ts",
  ]);
});

test("finds dependent modules nearest first, through cycles, and stops at a boundary", () => {
  const graph = new Map([
    ["a.ts", ["b.ts"]],
    ["b.ts", ["a.ts", "leaf.ts"]],
    ["api.ts", ["b.ts"]],
    ["main.ts", ["api.ts"]],
    ["leaf.ts", []],
  ]);
  const distances = { "leaf.ts": 0, "b.ts": 1, "a.ts": 2, "api.ts": 2 };
  expect(Object.fromEntries(findDependents(graph, ["leaf.ts"], (file) => file === "api.ts"))).toEqual(
    distances,
  );
  expect([...findDependents(graph, ["leaf.ts"]).keys()]).toEqual([
    "leaf.ts",
    "b.ts",
    "a.ts",
    "api.ts",
    "main.ts",
  ]);
});
