/**
 * Every test of the product, in projects by need:
 * - `pure`: units of the server without a database (`cli/src/tests/pure.ts` finds them)
 * - `server`: units of the server on PostgreSQL
 * - `runtime`, `cli`, `bench`: units of the other packages. All units run in parallel and need no root
 * - `server-postgres15`: `server` once more on Debian's PostgreSQL 15, the oldest that is supported
 * - `host`: the real runtime (`*.host.test.ts`): root, runsc, nft; one file at a time, because they share the host
 * - `e2e`: the whole server from outside, by HTTP; one file at a time as well, because they share that server
 * - `e2e-own-servers`: the same for files that share nothing with those
 *
 * Parallelism is a setting of the whole run, not of a project: `kontor test` runs the units first and then the others,
 * each in a run of its own, in two lanes beside one another (`cli/src/tests/suites.ts`).
 */
import { configDefaults, defineConfig } from "vitest/config";
import { divideServerTests } from "./cli/src/tests/pure.ts";

const hostTests = "**/*.host.test.ts";

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: "pure",
          root: "server",
          include: divideServerTests().pure,
          pool: "forks",
          // The same as in server/vitest.config.ts
          expect: { poll: { timeout: 30_000 } },
          testTimeout: 60_000,
        },
      },
      "server",
      "server/test/postgres15",
      "e2e",
      "e2e/own-servers",
      ...["runtime", "cli", "bench"].map((name) => ({
        test: {
          name,
          include: [`${name}/**/*.test.ts`],
          exclude: [...configDefaults.exclude, hostTests],
          pool: "forks" as const,
          // The same as in server/vitest.config.ts
          expect: { poll: { timeout: 20_000 } },
          testTimeout: 30_000,
        },
      })),
      {
        test: {
          name: "host",
          include: [`{server,runtime,cli}/**/${hostTests.slice(3)}`],
          pool: "forks",
          expect: { poll: { timeout: 30_000 } },
          // a machine boots in a third of a second; the first template of a run takes half a minute and more
          testTimeout: 120_000,
          // The same as in e2e/vitest.config.ts
          retry: 1,
          hookTimeout: 600_000,
        },
      },
    ],
  },
});
