/** The repositories that the end-to-end tests deploy: what each expects is what is recognised in it. */
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

test.each(expectations)("%s is recognised, and there is a way to build it", async (name, expected) => {
  const at = expected.root_directory;
  const analysis = await analyze(directoryTree(join(apps, name)), at ? { rootDirectory: at } : {});
  expect(analysis && recipeOf(analysis)).toMatch(/^FROM /m);
  if (expected.framework && expected.framework !== "dockerfile")
    expect(analysis?.framework).toBe(expected.framework);
});
