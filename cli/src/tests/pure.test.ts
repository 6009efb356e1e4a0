import { globSync } from "node:fs";
import { expect, test } from "vitest";
import { inProduct } from "../lib/places.ts";
import { divide, divideServerTests } from "./pure.ts";

test("classifies a test as pure unless the test or one of its helpers uses a database", () => {
  const sources = new Map([
    ["server/test/harness.ts", "export function testDatabase() { inject('postgres'); }"],
    ["server/src/testing/app.ts", 'import { testDatabase } from "../../test/harness.ts";'],
    ["server/src/testing/clock.ts", 'import { testClock } from "../../test/harness.ts";'],
    ["server/src/a.test.ts", 'import { testDatabase } from "../test/harness.ts";'],
    ["server/src/b.test.ts", 'import { app } from "./testing/app.ts";'],
    ["server/src/c.test.ts", 'import { clock } from "./testing/clock.ts";'],
    ["server/src/d.test.ts", "await ensureEmbedded(directory);"],
  ]);
  expect(divide(sources)).toEqual({
    pure: ["server/src/c.test.ts"],
    onDatabase: ["server/src/a.test.ts", "server/src/b.test.ts", "server/src/d.test.ts"],
  });
});

test("puts every unit test of the server into one of the two projects", () => {
  const { pure, onDatabase } = divideServerTests();
  const all = globSync(["src/**/*.test.ts", "test/**/*.test.ts"], {
    cwd: inProduct("server"),
    exclude: ["**/*.host.test.ts"],
  });
  expect([...pure, ...onDatabase].toSorted()).toEqual(all.toSorted());
  expect(pure.length).toBeGreaterThan(50);
  expect(onDatabase).toContain("src/sandbox/pty/pty.test.ts");
});
