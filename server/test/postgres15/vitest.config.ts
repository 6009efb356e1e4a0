import { join } from "node:path";
import { defineConfig } from "vitest/config";
import { divideServerTests } from "../../../cli/src/tests/pure.ts";

/** Runs the project `server` once more on PostgreSQL 15 (Debian's package postgresql-15), without `test/`. */
export default defineConfig({
  test: {
    name: "server-postgres15",
    root: join(import.meta.dirname, "../.."),
    include: divideServerTests().onDatabase.filter((file) => file.startsWith("src/")),
    // These tests start their own embedded PostgreSQL.
    exclude: ["src/db/embedded*.test.ts"],
    pool: "forks",
    // Timeout of a polled condition on a busy host; the default is one second.
    expect: { poll: { timeout: 30_000 } },
    globalSetup: ["test/postgres15/global-setup.ts"],
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
