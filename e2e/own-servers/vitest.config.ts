import { defineConfig } from "vitest/config";

/**
 * End-to-end tests in files that start their own server and need no simulated internet. These files may run beside
 * those of the shared server (`kontor test` does so). Within this project, one file runs at a time.
 */
export default defineConfig({
  test: {
    name: "e2e-own-servers",
    root: import.meta.dirname,
    include: ["*.e2e.test.ts"],
    pool: "forks",
    // Timeout of a polled condition on a busy host; the default is one second.
    expect: { poll: { timeout: 30_000 } },
    fileParallelism: false,
    testTimeout: 60_000,
    // Both settings are as in e2e/vitest.config.ts.
    retry: 1,
    hookTimeout: 600_000,
  },
});
