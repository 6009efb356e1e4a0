/**
 * Divides the server's tests: `pure` needs neither PostgreSQL nor root, and the other tests run on PostgreSQL. A test
 * is pure unless it, or a helper that it imports, opens a database in a known way. Helpers are the files in `testing/`
 * and `test/`. A test that opens a database in another way fails in `pure`, because no PostgreSQL runs there.
 */
import { globSync, readFileSync } from "node:fs";
import path from "node:path";
import { inProduct, productRoot } from "../lib/places.ts";
import { findDependents, importsIn } from "./imports.ts";

export interface ServerTests {
  pure: string[];
  onDatabase: string[];
}

/**
 * Matches the known ways to a database: the harness's `testDatabase`, a PostgreSQL of the test's own, and the
 * connection of the global set-up.
 */
const databaseUse = /\b(testDatabase|ensureEmbedded|inject)\b/;

/** File that defines `testDatabase` beside helpers without a database. */
const harness = "server/test/harness.ts";

/** Returns the test files of the server, relative to its folder, as the `include` of a project needs them. */
export function divideServerTests(): ServerTests {
  const patterns = ["server/src/**/*.test.ts", "server/**/testing/**/*.ts", "server/test/**/*.ts"];
  const sources = new Map(
    globSync(patterns, { cwd: productRoot, exclude: ["**/node_modules/**", "**/*.host.test.ts"] }).map(
      (file) => [file, readFileSync(inProduct(file), "utf8")],
    ),
  );
  const { pure, onDatabase } = divide(sources);
  const inServer = (file: string): string => path.relative("server", file);
  return { pure: pure.map(inServer), onDatabase: onDatabase.map(inServer) };
}

/** Divides the test files among `sources`, which also has the helpers. */
export function divide(sources: ReadonlyMap<string, string>): ServerTests {
  const graph = new Map([...sources].map(([file, source]) => [file, importsIn(source, file)]));
  const users = [...sources].filter(([file, source]) => file !== harness && databaseUse.test(source));
  const dependents = findDependents(
    graph,
    users.map(([file]) => file),
  );
  const tests = [...sources.keys()].filter((file) => file.endsWith(".test.ts")).toSorted();
  return {
    pure: tests.filter((file) => !dependents.has(file)),
    onDatabase: tests.filter((file) => dependents.has(file)),
  };
}
