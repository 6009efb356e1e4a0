import { defineConfig } from "vitest/config";

/** Tests of the server that need no root: on a real PostgreSQL, each file with a database of its own. */
export default defineConfig({
  test: {
    name: "server",
    root: import.meta.dirname,
    include: ["src/**/*.test.ts", "test/**/*.test.ts"],
    exclude: ["**/*.host.test.ts"],
    pool: "forks",
    // A condition is waited for as long as a busy host needs; the default is one second.
    expect: { poll: { timeout: 30_000 } },
    globalSetup: ["test/global-setup.ts"],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // Real processes beside a real database: as in e2e/vitest.config.ts.
    retry: 1,
  },
});
