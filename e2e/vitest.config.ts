import { defineConfig } from "vitest/config";

/**
 * Tests of the whole server from outside, by HTTP, on the real runtime. The tests need root, runsc and nft. The test
 * files share one server and its simulated internet, so they run one at a time. The files in `own-servers` use their
 * own servers and have their own configuration.
 */
export default defineConfig({
  test: {
    name: "e2e",
    root: import.meta.dirname,
    include: ["*.e2e.test.ts"],
    globalSetup: ["global-setup.ts"],
    pool: "forks",
    // Timeout of a polled condition on a busy host; the default is one second.
    expect: { poll: { timeout: 30_000 } },
    fileParallelism: false,
    testTimeout: 60_000,
    // Other programs use the host too, so a second attempt is allowed. The end of the run lists repeated tests.
    retry: 1,
    // The first template of a host takes half a minute to make, or longer with a slow mirror.
    hookTimeout: 600_000,
  },
});
