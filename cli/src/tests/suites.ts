/**
 * The suites of `kontor check` and `kontor test` as a table. A suite is a command that counts as one test, or a set of
 * vitest projects that counts its own tests.
 */

export interface Suite {
  name: string;
  /** `files` limits the projects to these test files. */
  run: { argv: [string, ...string[]] } | { projects: string[]; serial: boolean; files?: string[] };
  /** The command that fixes the findings. */
  repair?: string;
}

/** Returns the argv of a package's program, run by the pinned Node without its `#!/usr/bin/env node`. */
export const tool = (file: string): [string, string] => [process.execPath, `node_modules/${file}`];

/** Projects of the tests that need no root. Each such test is in one of these projects. */
export const unitProjects = ["pure", "server", "runtime", "cli", "bench"];

export const lintSuite = (...files: string[]): Suite => ({
  name: "lint and layers",
  run: { argv: [...tool("oxlint/bin/oxlint"), "--deny-warnings", ...files] },
});

/**
 * Suite that checks types. tsc keeps its state in `.cache`, so that the next run checks only the files that a change
 * affects.
 */
export const typesSuite: Suite = {
  name: "types",
  run: {
    argv: [
      ...tool("typescript/bin/tsc"),
      "-p",
      "tsconfig.json",
      "--incremental",
      "--tsBuildInfoFile",
      ".cache/types.tsbuildinfo",
    ],
  },
};

export const documentsSuite: Suite = {
  name: "generated: OpenAPI documents",
  run: { argv: [process.execPath, "server/src/openapi.ts", "--check"] },
  repair: "node server/src/openapi.ts --write",
};

/** Suites that `kontor check` runs in sequence, and with which `kontor test` starts. */
export const fastSuites: readonly Suite[] = [
  {
    name: "format",
    run: { argv: [...tool("oxfmt/bin/oxfmt"), "--check", "."] },
    repair: "node_modules/.bin/oxfmt .",
  },
  lintSuite("."),
  {
    name: "unused code",
    run: { argv: [...tool("knip/bin/knip.js"), "--no-progress"] },
    repair: "delete the unused export, or the word `export` if its own file uses it",
  },
  {
    name: "words",
    run: { argv: [process.execPath, "cli/src/lint/words.ts"] },
    repair: "rewrite the sentences; CONTRIBUTING has the rules",
  },
  typesSuite,
  documentsSuite,
  { name: "units", run: { projects: unitProjects, serial: false } },
];

/**
 * Suites on real machines, which wait most of the time. Two lanes run in parallel, each in sequence. The first lane has
 * the suites that share resources of the host: the fixed instance numbers of `host`, and the host's one simulated
 * internet.
 */
export const lanes: readonly (readonly Suite[])[] = [
  [
    { name: "guest program", run: { argv: ["make", "-C", "guest", "test"] } },
    { name: "host", run: { projects: ["host"], serial: true } },
    { name: "end to end", run: { projects: ["e2e"], serial: true } },
  ],
  [
    { name: "units on PostgreSQL 15", run: { projects: ["server-postgres15"], serial: true } },
    { name: "end to end, own servers", run: { projects: ["e2e-own-servers"], serial: true } },
  ],
];

export const freshRootSuites: readonly Suite[] = ["bookworm", "trixie"].map((codename) => ({
  name: `set-up in a fresh root of ${codename}`,
  run: { argv: ["sh", "e2e/fresh-root.sh", codename] },
}));
