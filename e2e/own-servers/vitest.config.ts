import { defineConfig } from "vitest/config";

/**
 * End to end as well, by files that start a server of their own and need no internet of the run's: they may run beside
 * those of the shared server (`kontor test` does so), one file at a time among themselves.
 */
export default defineConfig({
  test: {
    name: "e2e-own-servers",
    root: import.meta.dirname,
    include: ["*.e2e.test.ts"],
    pool: "forks",
    // A condition is waited for as long as a busy host needs; the default is one second.
    expect: { poll: { timeout: 30_000 } },
    fileParallelism: false,
    testTimeout: 60_000,
    // Both as in e2e/vitest.config.ts.
    retry: 1,
    hookTimeout: 600_000,
  },
});
