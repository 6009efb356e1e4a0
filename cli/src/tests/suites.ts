/**
 * Everything that is run to say the product works, as a table. A suite is a command that counts as one test, or a
 * set of vitest projects that counts its own.
 */

export interface Suite {
  name: string;
  /** In `kontor check`, the fast loop, as well as in `kontor test`. */
  fast: boolean;
  run: { argv: [string, ...string[]] } | { projects: string[]; serial: boolean };
  /** What to do when it fails. */
  repair?: string;
}

/** A package's program, run by the pinned Node without its `#!/usr/bin/env node`. */
const tool = (file: string): [string, string] => [process.execPath, `node_modules/${file}`];

export const suites: readonly Suite[] = [
  {
    name: "format",
    fast: true,
    run: { argv: [...tool("oxfmt/bin/oxfmt"), "--check", "."] },
    repair: "node_modules/.bin/oxfmt .",
  },
  {
    name: "lint and layers",
    fast: true,
    run: { argv: [...tool("oxlint/bin/oxlint"), "--deny-warnings", "."] },
  },
  { name: "types", fast: true, run: { argv: [...tool("typescript/bin/tsc"), "-p", "tsconfig.json"] } },
  {
    name: "generated: lint configuration",
    fast: true,
    run: { argv: [process.execPath, "cli/src/lint/oxlintrc.ts", "--check"] },
    repair: "node cli/src/lint/oxlintrc.ts --write",
  },
  {
    name: "generated: OpenAPI documents",
    fast: true,
    run: { argv: [process.execPath, "server/src/openapi.ts", "--check"] },
    repair: "node server/src/openapi.ts --write",
  },
  { name: "units", fast: true, run: { projects: ["server", "runtime", "cli", "bench"], serial: false } },
  { name: "units on PostgreSQL 15", fast: false, run: { projects: ["server-postgres15"], serial: false } },
  { name: "guest program", fast: false, run: { argv: ["make", "-C", "guest", "test"] } },
  { name: "host", fast: false, run: { projects: ["host"], serial: true } },
  { name: "end to end", fast: false, run: { projects: ["e2e"], serial: true } },
];

export const freshRootSuite: Suite = {
  name: "set-up in a fresh root",
  fast: false,
  run: { argv: ["sh", "e2e/fresh-root.sh"] },
};
