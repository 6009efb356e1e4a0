import { defineConfig } from "vitest/config";
import { divideServerTests } from "../cli/src/tests/pure.ts";

/** Tests of the server on a real PostgreSQL, each file with a database of its own. The others are the project `pure`. */
export default defineConfig({
  test: {
    name: "server",
    root: import.meta.dirname,
    include: divideServerTests().onDatabase,
    pool: "forks",
    // A condition is waited for as long as a busy host needs; the default is one second.
    expect: { poll: { timeout: 30_000 } },
    globalSetup: ["test/global-setup.ts"],
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
