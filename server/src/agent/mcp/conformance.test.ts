/** Runs the MCP conformance suite's scenarios of a client that lists and calls tools. */
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";

const suite = join(
  dirname(createRequire(import.meta.url).resolve("@modelcontextprotocol/conformance/package.json")),
  "dist/index.js",
);
const client = fileURLToPath(new URL("../../../test/programs/mcp-conformance-client.ts", import.meta.url));

test.each(["initialize", "tools_call", "sse-retry", "elicitation-sep1034-client-defaults"])(
  "passes the suite's scenario %s",
  async (scenario) => {
    // The suite writes its results into its working directory.
    const cwd = mkdtempSync(join(tmpdir(), "kontor-mcp-"));
    try {
      const command = `${process.execPath} ${client}`;
      const { stdout, stderr } = await promisify(execFile)(
        process.execPath,
        [suite, "client", "--command", command, "--scenario", scenario],
        { cwd, timeout: 60_000, env: { PATH: process.env["PATH"] } },
      );
      expect(stdout + stderr).toMatch(/Passed: \d+\/\d+, 0 failed/);
    } finally {
      rmSync(cwd, { recursive: true });
    }
  },
  90_000,
);
