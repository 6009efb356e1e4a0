import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import type { ImageRecipe } from "../driver.ts";
import { finder, imageId, loadRecipes, parseRecipe, withoutUser } from "./recipes.ts";

const npm = {
  kind: "npm" as const,
  package: "@scope/tool",
  version: "1.2.3",
  into: "/usr/local",
  paths: ["bin/tool"],
  links: { "/usr/bin/tool": "../local/bin/tool" },
};
const base: ImageRecipe = {
  name: "base",
  promise: { debian: "12" },
  ways: [
    {
      substitute: false,
      steps: [{ kind: "debian", suite: "bookworm", components: ["main"], packages: ["git"] }],
    },
  ],
  env: { LANG: "C.UTF-8" },
  probes: { debian: ["cat", "/etc/debian_version"] },
};
const above: ImageRecipe = {
  ...base,
  name: "above",
  ways: [
    { substitute: false, steps: [{ kind: "image", name: "base" }, npm, { kind: "run", argv: ["true"] }] },
  ],
};

test("loads the built-in templates, which build on each other", async () => {
  const recipes = await loadRecipes();
  expect(recipes.map(({ name }) => name)).toEqual([
    "code-interpreter",
    "debian-12",
    "node-22",
    "python-3.12-bare",
    "python-3.12",
  ]);
});

test("returns a valid recipe unchanged", () => {
  expect(parseRecipe(JSON.parse(JSON.stringify(above)))).toEqual(above);
});

test.each<[string, unknown, string]>([
  ["an unknown field", { ...base, nmae: "x" }, "nmae is not a known field"],
  ["a missing field", { ...base, env: undefined }, "env must be an object"],
  ["no way at all", { ...base, ways: [] }, "ways must be a list of at least 1"],
  ["a name that is a path", { ...base, name: "../x" }, "name must be a name"],
  [
    "an unknown step",
    { ...base, ways: [{ substitute: false, steps: [{ kind: "sh" }] }] },
    "ways[0].steps[0].kind must be one of",
  ],
  [
    "a version that floats",
    withNpm({ version: "^1.2.0" }),
    "ways[0].steps[0].version must be an exact version",
  ],
  ["a path out of the package", withNpm({ paths: ["../../etc"] }), "paths[0] must be a path inside"],
  ["a path out of the image", withNpm({ into: "/usr/../../etc" }), "into must be an absolute path"],
  ["an option in place of a package", withNpm({ package: "--registry" }), "package must be the name"],
  [
    "an option among Debian's packages",
    {
      ...base,
      ways: [
        {
          substitute: false,
          steps: [{ kind: "debian", suite: "bookworm", components: ["main"], packages: ["--x"] }],
        },
      ],
    },
    "packages[0] must be a Debian name",
  ],
  [
    "a service on no port",
    { ...base, service: { speaks: "echo/1", argv: ["echo"], port: 70_000 } },
    "service.port must be a port",
  ],
  [
    "files from elsewhere",
    { ...base, ways: [{ substitute: false, steps: [{ kind: "files", from: "../x", into: "/x" }] }] },
    "ways[0].steps[0].from must be a path inside",
  ],
])("rejects %s by name", (_, recipe, message) => {
  expect(() => parseRecipe(recipe)).toThrow(message);
});

function withNpm(change: Partial<typeof npm>): unknown {
  return { ...base, ways: [{ substitute: false, steps: [{ ...npm, ...change }] }] };
}

test("derives the id from all inputs of an image, including its base", () => {
  const id = imageId(above, 0, finder([base, above]));
  expect(id).toMatch(/^above-[0-9a-f]{10}$/);
  expect(imageId(above, 0, finder([base, above]))).toBe(id);
  expect(imageId(above, 0, finder([{ ...base, env: {} }, above]))).not.toBe(id);
  expect(imageId({ ...above, env: {} }, 0, finder([base]))).not.toBe(id);
  const service = { speaks: "echo/1", argv: ["echo"], port: 7 };
  expect(imageId({ ...above, service }, 0, finder([base]))).not.toBe(id);
});

test("includes files next to a recipe in the id: another text is another image", async () => {
  const directory = await mkdtemp(path.join(os.tmpdir(), "kontor-recipes-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const steps = [{ kind: "files", from: "base/tool", into: "/usr/local/lib/tool" }];
  await writeFile(
    path.join(directory, "base.json"),
    JSON.stringify({ ...base, ways: [{ substitute: false, steps }] }),
  );
  const read = async (text: string) => {
    await mkdir(path.join(directory, "base/tool/part/__pycache__"), { recursive: true });
    await writeFile(path.join(directory, "base/tool/part/a.py"), text);
    await writeFile(path.join(directory, "base/tool/part/__pycache__/a.pyc"), text);
    const recipes = await loadRecipes(directory);
    return { step: recipes[0]?.ways[0]?.steps[0], id: imageId(finder(recipes)("base"), 0, finder(recipes)) };
  };
  const first = await read("one");
  expect(first.step).toEqual({ ...steps[0], contents: { "part/a.py": "one" } });
  expect((await read("one")).id).toBe(first.id);
  expect((await read("two")).id).not.toBe(first.id);
  await rm(path.join(directory, "base"), { recursive: true });
  await expect(loadRecipes(directory)).rejects.toThrow("base.json:");
});

test("rejects recipes that build on each other in a cycle, and a recipe without a base", () => {
  const circle = {
    ...base,
    ways: [{ substitute: false, steps: [{ kind: "image" as const, name: "above" }] }],
  };
  expect(() => imageId(above, 0, finder([circle, above]))).toThrow("above → base → above");
  expect(() => imageId(above, 0, finder([above]))).toThrow("no recipe named base");
});

test("names the file of an invalid recipe", async () => {
  const directory = await mkdtemp(path.join(os.tmpdir(), "kontor-recipes-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  await writeFile(path.join(directory, "other.json"), JSON.stringify(base));
  await expect(loadRecipes(directory)).rejects.toThrow(
    'other.json: name must be the name of the file, not "base"',
  );
});

test("gives an image with a user its own id, and does not change the ids of its base and of images built on it", () => {
  const withUser = parseRecipe({ ...base, user: true });
  expect(withoutUser(withUser)).toEqual(base);
  expect(imageId(withUser, 0, finder([withUser]))).not.toBe(imageId(base, 0, finder([base])));
  const idOnPlain = imageId(above, 0, finder([above, base]));
  expect(imageId(above, 0, finder([above, withUser]))).toBe(idOnPlain);
});
