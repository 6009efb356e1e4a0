import { defineConfig } from "vitest/config";

/**
 * The whole server from outside, by HTTP, on the real runtime: needs root, runsc and nft. The test files share one
 * server and its internet, so they run one at a time. The files in `own-servers` share nothing and have their own
 * configuration.
 */
export default defineConfig({
  test: {
    name: "e2e",
    root: import.meta.dirname,
    include: ["*.e2e.test.ts"],
    globalSetup: ["global-setup.ts"],
    pool: "forks",
    // A condition is waited for as long as a busy host needs; the default is one second.
    expect: { poll: { timeout: 30_000 } },
    fileParallelism: false,
    testTimeout: 60_000,
    // Real machines on a host that others use: a second try is allowed, and named at the end of the run.
    retry: 1,
    // The first template of a host takes half a minute to make, and longer where its mirror is slow.
    hookTimeout: 600_000,
  },
});
