import { join } from "node:path";
import { defineConfig } from "vitest/config";

/** The server's tests that speak to a database, once more on PostgreSQL 15 (Debian's package postgresql-15). */
export default defineConfig({
  test: {
    name: "server-postgres15",
    root: join(import.meta.dirname, "../.."),
    include: ["src/**/*.test.ts"],
    exclude: ["**/*.host.test.ts", "src/lib/**", "src/config.test.ts", "src/db/embedded*.test.ts"],
    pool: "forks",
    // A condition is waited for as long as a busy host needs; the default is one second.
    expect: { poll: { timeout: 30_000 } },
    globalSetup: ["test/postgres15/global-setup.ts"],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // Real processes beside a real database: as in e2e/vitest.config.ts.
    retry: 1,
  },
});
