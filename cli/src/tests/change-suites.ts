/**
 * The suites of `kontor check --changed`: the files that differ from the merge base with `main`, new files included, and
 * the unit tests that they reach. Types are checked for the whole program, because tsc keeps its state.
 *
 * A change reaches the tests that import it, directly or through other files. The search ends at files that put whole
 * APIs together, because every test behind them starts the whole server. `kontor check` runs those.
 */
import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { Failure } from "../lib/failure.ts";
import { inProduct, productRoot } from "../lib/places.ts";
import { run } from "../lib/run.ts";
import { findDependents, importsIn } from "./imports.ts";
import { documentsSuite, lintSuite, tool, typesSuite, unitProjects, type Suite } from "./suites.ts";

/** Largest number of test files; the nearest files are kept. A change at the bottom of the graph reaches most tests. */
const maxTestFiles = 10;

const isModule = (file: string): boolean => /\.[cm]?[jt]s$/.test(file);
const isUnit = (file: string): boolean =>
  /^(server|runtime|cli|bench)\/.*\.test\.ts$/.test(file) && !file.endsWith(".host.test.ts");

/** True for `api.ts`, `main.ts`, files at the top of `server/src` and files in its `compose/`. */
const isBoundary = (file: string): boolean =>
  /(^|\/)(api|main)\.ts$|^server\/src\/([^/]+|compose\/.*)\.ts$/.test(file);

/** True for files whose changes affect the lint rules of all files. */
const isLintRule = (file: string): boolean =>
  /^cli\/src\/lint\/(layers|oxlint-rules)\.ts$|^oxlint\.config/.test(file);

async function git(root: string, ...args: string[]): Promise<string[] | undefined> {
  const { code, output } = await run(["git", ...args], { cwd: root });
  return code === 0 ? output.split("\n").filter((line) => line !== "") : undefined;
}

/**
 * Returns changed and new files since the merge base with `main`, or since the last commit in a repository without
 * `main`.
 */
export async function findChangedFiles(root = productRoot): Promise<string[]> {
  const [base = "HEAD"] = (await git(root, "merge-base", "HEAD", "main")) ?? [];
  const changed = await git(root, "diff", "--name-only", "--no-renames", "--relative", base, "--");
  const added = await git(root, "ls-files", "--others", "--exclude-standard");
  if (!changed || !added) throw new Failure("git cannot list the changed files. Run: kontor check");
  return [...new Set([...changed, ...added])].toSorted();
}

export interface ReachedTests {
  /** Reached test files, nearest first. */
  files: string[];
  /** Number of reached tests that are left out, because they are further away. */
  omitted: number;
}

/** Returns the unit tests that import a changed file. A changed data file counts for the modules that name it. */
export function findReachedTests(
  sources: ReadonlyMap<string, string>,
  changed: readonly string[],
): ReachedTests {
  const names = changed.filter((file) => !isModule(file)).map((file) => path.basename(file));
  const named = [...sources].filter(([, source]) => names.some((name) => source.includes(name)));
  const graph = new Map([...sources].map(([file, source]) => [file, importsIn(source, file)]));
  const starts = [...changed.filter(isModule), ...named.map(([file]) => file)];
  const tests = [...findDependents(graph, starts, isBoundary).keys()].filter(
    (file) => isUnit(file) && sources.has(file),
  );
  return { files: tests.slice(0, maxTestFiles), omitted: Math.max(0, tests.length - maxTestFiles) };
}

async function readModules(): Promise<Map<string, string>> {
  const files = (await git(productRoot, "ls-files", "--cached", "--others", "--exclude-standard")) ?? [];
  return new Map(
    files
      .filter((file) => isModule(file) && !file.startsWith("e2e/apps/") && existsSync(inProduct(file)))
      .map((file) => [file, readFileSync(inProduct(file), "utf8")]),
  );
}

/** Returns the suites for `changed`, with the tests that it reaches. */
export async function changedSuites(
  changed: readonly string[],
): Promise<{ suites: Suite[]; tests: ReachedTests }> {
  const present = changed.filter((file) => existsSync(inProduct(file)));
  const modules = present.filter((file) => isModule(file) && !file.startsWith("e2e/apps/"));
  const tests = findReachedTests(await readModules(), changed);
  const suites: (Suite | false)[] = [
    present.length > 0 && {
      name: "format",
      run: { argv: [...tool("oxfmt/bin/oxfmt"), "--check", "--no-error-on-unmatched-pattern", ...present] },
      repair: "node_modules/.bin/oxfmt .",
    },
    modules.length > 0 && (changed.some(isLintRule) ? lintSuite(".") : lintSuite(...modules)),
    typesSuite,
    changed.some((file) => /^(server\/src\/.*\.ts|openapi\/.*)$/.test(file) && !isUnit(file)) &&
      documentsSuite,
    tests.files.length > 0 && {
      name: "units",
      run: { projects: unitProjects, serial: false, files: tests.files },
    },
  ];
  return { suites: suites.filter((suite) => suite !== false), tests };
}
