/**
 * Recipes: images as data, one JSON file each in templates/. The server reads and checks all recipes at its start. So a
 * mistake is reported with the names of file and field, not in the middle of a build.
 */
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { RuntimeError, type ImageRecipe, type ImageStep } from "../driver.ts";

export const BUILT_IN_RECIPES = fileURLToPath(new URL("../../../templates", import.meta.url));

/** Directory of the base images for builds of apps, in addition to the built-in templates that also serve as bases. */
export const BASE_RECIPES = path.join(BUILT_IN_RECIPES, "bases");

/**
 * Directory of the images of the server's own machines, such as databases. Users do not request these images by name.
 */
export const ADDON_RECIPES = path.join(BUILT_IN_RECIPES, "addons");

/**
 * Loads every recipe of the directory, by name. The recipes may also build on `known` recipes. Fails with
 * `image_failed` and `<file>: <field> …`.
 */
export async function loadRecipes(
  directory: string = BUILT_IN_RECIPES,
  known: readonly ImageRecipe[] = [],
): Promise<ImageRecipe[]> {
  const files = (await readdir(directory)).filter((file) => file.endsWith(".json")).toSorted();
  const recipes = await Promise.all(
    files.map(async (file) => {
      try {
        const recipe = parseRecipe(JSON.parse(await readFile(path.join(directory, file), "utf8")));
        await readFiles(directory, recipe);
        if (`${recipe.name}.json` !== file)
          throw new Error(`name must be the name of the file, not "${recipe.name}"`);
        return recipe;
      } catch (error) {
        throw new RuntimeError("image_failed", `${file}: ${(error as Error).message}`, { cause: error });
      }
    }),
  );
  for (const recipe of recipes) fingerprint(recipe, 0, finder([...recipes, ...known]));
  return recipes;
}

/** Reads the files next to a recipe, which are part of it: a change of a file changes the image. */
async function readFiles(directory: string, recipe: ImageRecipe): Promise<void> {
  for (const step of recipe.ways.flatMap(({ steps }) => steps)) {
    if (step.kind !== "files") continue;
    const from = path.join(directory, step.from);
    const found = await readdir(from, { recursive: true, withFileTypes: true });
    // Files of tests and editors are left out.
    const files = found
      .filter((entry) => entry.isFile() && !entry.parentPath.includes("__pycache__"))
      .map((entry) => path.relative(from, path.join(entry.parentPath, entry.name)))
      .toSorted();
    if (files.length === 0) throw new Error(`the directory ${step.from} is empty`);
    const contents = files.map(
      async (file) => [file, await readFile(path.join(from, file), "utf8")] as const,
    );
    step.contents = Object.fromEntries(await Promise.all(contents));
  }
}

/**
 * Returns the recipe without its ordinary user, for images that build on it: their own users expect the number 1000.
 */
export function withoutUser(recipe: ImageRecipe): ImageRecipe {
  const { user: _, ...rest } = recipe;
  return rest;
}

export type FindRecipe = (name: string) => ImageRecipe;

export function finder(recipes: readonly ImageRecipe[]): FindRecipe {
  return (name) => {
    const recipe = recipes.find((each) => each.name === name);
    if (recipe === undefined) throw new RuntimeError("image_failed", `there is no recipe named ${name}`);
    return recipe;
  };
}

/**
 * Returns the id of an image made by one way of a recipe: the name, and a hash of all inputs, including the base
 * recipes. A changed recipe makes another image; existing machines keep the old image.
 */
export function imageId(recipe: ImageRecipe, way: number, find: FindRecipe): string {
  return `${recipe.name}-${fingerprint(recipe, way, find).slice(0, 10)}`;
}

/**
 * Version of the code that makes images. Raise this number whenever the code makes a different image of the same
 * recipe.
 */
const FORMAT = 1;
/** Version of the ordinary user. A change does not affect other images. */
const USER_FORMAT = "user 1";

function fingerprint(
  recipe: ImageRecipe,
  way: number,
  find: FindRecipe,
  above: readonly string[] = [],
): string {
  if (above.includes(recipe.name)) {
    throw new RuntimeError(
      "image_failed",
      `recipes build on each other in a circle: ${[...above, recipe.name].join(" → ")}`,
    );
  }
  const { steps = [], substitute } = recipe.ways[way] ?? {};
  const bases = steps.flatMap((step) => {
    if (step.kind !== "image") return [];
    const base = find(step.name);
    return base.ways.map((_, index) => fingerprint(base, index, find, [...above, recipe.name]));
  });
  const { name, promise, env, probes, service } = recipe;
  const all = [FORMAT, name, promise, env, probes, steps, substitute, bases];
  const complete = service === undefined ? all : [...all, service];
  // A base counts without its user, so both variants have the same base image.
  const hasUser = recipe.user === true && above.length === 0;
  return createHash("sha256")
    .update(JSON.stringify(hasUser ? [...complete, USER_FORMAT] : complete))
    .digest("hex");
}

type Check<T> = (value: unknown, field: string) => T;

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const text =
  (pattern: RegExp, what: string): Check<string> =>
  (value, field) => {
    if (typeof value !== "string" || !pattern.test(value)) throw new Error(`${field} must be ${what}`);
    return value;
  };

const anyText = text(/^[^\0]+$/, "a text that is not empty");
const name = text(/^[a-z0-9][a-z0-9_.-]{1,62}$/, "a name of lower-case letters, digits, dots and dashes");
const aptWord = text(/^[a-z0-9][a-z0-9+.-]*$/, "a Debian name");
const npmPackage = text(/^(@[a-z0-9][\w.-]*\/)?[a-z0-9][\w.-]*$/, "the name of an npm package");
const exactVersion = text(/^\d+\.\d+\.\d+[\w.+-]*$/, "an exact version");

const relativePath: Check<string> = (value, field) => {
  const found = anyText(value, field);
  if (path.isAbsolute(found) || path.normalize(found) !== found || found.startsWith("..")) {
    throw new Error(`${field} must be a path inside the package`);
  }
  return found;
};

const absolutePath: Check<string> = (value, field) => {
  const found = anyText(value, field);
  if (!path.isAbsolute(found) || path.normalize(found) !== found)
    throw new Error(`${field} must be an absolute path`);
  return found;
};

const yesOrNo: Check<boolean> = (value, field) => {
  if (typeof value !== "boolean") throw new Error(`${field} must be true or false`);
  return value;
};

const list =
  <T>(check: Check<T>, atLeast = 0): Check<T[]> =>
  (value, field) => {
    if (!Array.isArray(value) || value.length < atLeast) {
      throw new Error(`${field} must be a list${atLeast > 0 ? ` of at least ${atLeast}` : ""}`);
    }
    return value.map((item, index) => check(item, `${field}[${index}]`));
  };

const map =
  <T>(check: Check<T>, key: Check<string> = anyText): Check<Record<string, T>> =>
  (value, field) => {
    if (!isObject(value)) throw new Error(`${field} must be an object`);
    return Object.fromEntries(
      Object.entries(value).map(([of, item]) => [
        key(of, `a key of ${field}`),
        check(item, `${field}.${of}`),
      ]),
    );
  };

/** Returns a schema that accepts exactly these fields; a misspelt field is reported by name. */
const shape =
  <T>(checks: { [Field in keyof T]-?: Check<T[Field]> }, optional: readonly (keyof T)[] = []): Check<T> =>
  (value, field) => {
    if (!isObject(value)) throw new Error(`${field} must be an object`);
    const at = (of: string) => (field === "" ? of : `${field}.${of}`);
    const unknown = Object.keys(value).find((of) => !Object.hasOwn(checks, of));
    if (unknown !== undefined) throw new Error(`${at(unknown)} is not a known field`);
    const fields = (Object.keys(checks) as (keyof T & string)[]).filter(
      (of) => Object.hasOwn(value, of) || !optional.includes(of),
    );
    return Object.fromEntries(fields.map((of) => [of, checks[of](value[of], at(of))])) as T;
  };

type StepOf<Kind extends ImageStep["kind"]> = Extract<ImageStep, { kind: Kind }>;

const STEPS: { [Kind in ImageStep["kind"]]: Check<StepOf<Kind>> } = {
  debian: shape<StepOf<"debian">>({
    kind: () => "debian",
    suite: aptWord,
    components: list(aptWord, 1),
    packages: list(aptWord),
  }),
  image: shape<StepOf<"image">>({ kind: () => "image", name }),
  npm: shape<StepOf<"npm">>(
    {
      kind: () => "npm",
      package: npmPackage,
      version: exactVersion,
      into: absolutePath,
      paths: list(relativePath),
      links: map(anyText, absolutePath),
    },
    ["links"],
  ),
  files: shape<StepOf<"files">>(
    { kind: () => "files", from: relativePath, into: absolutePath, contents: () => ({}) },
    ["contents"],
  ),
  "npm-ci": shape<StepOf<"npm-ci">>({ kind: () => "npm-ci", directory: absolutePath }),
  run: shape<StepOf<"run">>({ kind: () => "run", argv: list(anyText, 1) }),
};

const step: Check<ImageStep> = (value, field) => {
  const kind = isObject(value) ? String(value["kind"]) : "";
  if (!Object.hasOwn(STEPS, kind))
    throw new Error(`${field}.kind must be one of ${Object.keys(STEPS).join(", ")}`);
  return STEPS[kind as ImageStep["kind"]](value, field);
};

const port: Check<number> = (value, field) => {
  if (!Number.isInteger(value) || Number(value) < 1 || Number(value) > 65_535)
    throw new Error(`${field} must be a port`);
  return Number(value);
};

const recipe = shape<ImageRecipe>(
  {
    name,
    promise: map(anyText),
    ways: list(shape({ steps: list(step, 1), substitute: yesOrNo }), 1),
    env: map(text(/^[^\0]*$/, "a text"), text(/^[A-Za-z_]\w*$/, "the name of a variable")),
    probes: map(list(anyText, 1)),
    service: shape({
      speaks: text(/^[a-z][a-z-]*\/\d+$/, "a protocol and its version"),
      argv: list(anyText, 1),
      port,
    }),
    user: yesOrNo,
  },
  ["service", "user"],
);

export function parseRecipe(value: unknown): ImageRecipe {
  return recipe(value, "");
}
