import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { bases, findBase } from "./bases.ts";

const templates = join(import.meta.dirname, "../../../../templates");

interface Recipe {
  name: string;
  ways: { substitute: boolean }[];
}

function recipeOf(name: string): Recipe {
  const files = [join(templates, "bases", `${name}.json`), join(templates, `${name}-bare.json`)];
  const file = files.find((each) => existsSync(each)) ?? join(templates, `${name}.json`);
  return JSON.parse(readFileSync(file, "utf8")) as Recipe;
}

test.each([...bases].map(([name, base]) => ({ name, base })))(
  "marks $name as a substitute exactly when its recipe is a substitute",
  ({ base }) => {
    expect(base.isSubstitute ?? false).toBe(recipeOf(base.recipe).ways[0]?.substitute);
  },
);

test("finds a base by its full name", () => {
  expect(findBase("docker.io/library/python:3.12-slim")).toMatchObject({ isSubstitute: true });
  expect(findBase("python:3.13-slim")).toMatchObject({ isSubstitute: false });
});
