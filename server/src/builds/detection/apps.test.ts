/**
 * Runs detection on the repositories that the end-to-end tests deploy, and compares each result with the expected one.
 */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { analyze } from "./detection.ts";
import { recipeOf } from "./recipe.ts";
import { directoryTree } from "./tree.ts";

interface Expectation {
  framework?: string;
  root_directory?: string;
}

const apps = fileURLToPath(new URL("../../../../e2e/apps", import.meta.url));
const expectations = readdirSync(apps).map((name): [string, Expectation] => [
  name,
  JSON.parse(readFileSync(join(apps, name, "expect.json"), "utf8")),
]);

test.each(expectations)("detects %s and writes its recipe", async (name, expected) => {
  const at = expected.root_directory;
  const analysis = await analyze(directoryTree(join(apps, name)), at ? { rootDirectory: at } : {});
  expect(analysis && recipeOf(analysis)).toMatch(/^FROM /m);
  if (expected.framework && expected.framework !== "dockerfile")
    expect(analysis?.framework).toBe(expected.framework);
});
