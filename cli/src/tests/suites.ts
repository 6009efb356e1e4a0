/**
 * Everything that is run to say the product works, as a table. A suite is a command that counts as one test, or a
 * set of vitest projects that counts its own.
 */

export interface Suite {
  name: string;
  run: { argv: [string, ...string[]] } | { projects: string[]; serial: boolean };
  /** What to do when it fails. */
  repair?: string;
}

/** A package's program, run by the pinned Node without its `#!/usr/bin/env node`. */
const tool = (file: string): [string, string] => [process.execPath, `node_modules/${file}`];

/** `kontor check`, the fast loop: one after the other. `kontor test` begins with them. */
export const fastSuites: readonly Suite[] = [
  {
    name: "format",
    run: { argv: [...tool("oxfmt/bin/oxfmt"), "--check", "."] },
    repair: "node_modules/.bin/oxfmt .",
  },
  {
    name: "lint and layers",
    run: { argv: [...tool("oxlint/bin/oxlint"), "--deny-warnings", "."] },
  },
  { name: "types", run: { argv: [...tool("typescript/bin/tsc"), "-p", "tsconfig.json"] } },
  {
    name: "generated: lint configuration",
    run: { argv: [process.execPath, "cli/src/lint/oxlintrc.ts", "--check"] },
    repair: "node cli/src/lint/oxlintrc.ts --write",
  },
  {
    name: "generated: OpenAPI documents",
    run: { argv: [process.execPath, "server/src/openapi.ts", "--check"] },
    repair: "node server/src/openapi.ts --write",
  },
  { name: "units", run: { projects: ["server", "runtime", "cli", "bench"], serial: false } },
];

/**
 * What needs real machines, and most of whose time is waiting: two lanes beside one another, each of them serial. The
 * first has the host to itself as far as that goes: the fixed instance numbers of `host`, the one internet of a host.
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
