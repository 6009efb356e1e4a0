/** Runs the MCP conformance suite's scenarios about the authorization of clients. */
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { freePort } from "../testing/free-port.ts";
import { startModelServer } from "../testing/model-server.ts";

const suite = join(
  dirname(createRequire(import.meta.url).resolve("@modelcontextprotocol/conformance/package.json")),
  "dist/index.js",
);
const program = fileURLToPath(
  new URL("../../../test/programs/mcp-sign-in-conformance-client.ts", import.meta.url),
);

/**
 * Scenarios with expected findings, each with its reason. The scenarios of extensions do not run: in
 * client-credentials-jwt, client-credentials-basic and cross-app-access-complete-flow no person signs in.
 */
const leftOut = {
  "auth/basic-cimd":
    "expects the URL of the suite's own document as the client id; ours has its own URL, and an https base",
  "auth/2025-03-26-oauth-endpoint-fallback": "has no metadata, so nothing shows that the server checks PKCE",
};

const model = await startModelServer();
const host = await agentHost({
  config: { port: String(await freePort()), allowPrivateHosts: "localhost,127.0.0.0/8,::1" },
});
const owner = await host.person();

/** Runs a scenario. Returns the suite's output, even after a failure. */
async function run(
  args: readonly string[],
  env: Record<string, string>,
): Promise<{ code: unknown; said: string }> {
  // The suite writes its results into its working directory.
  const cwd = mkdtempSync(join(tmpdir(), "kontor-mcp-"));
  const lines = Object.keys(leftOut).map((name) => `  - ${name}\n`);
  writeFileSync(join(cwd, "left-out.yml"), `client:\n${lines.join("")}`);
  return new Promise((resolve) => {
    const options = {
      cwd,
      timeout: 120_000,
      maxBuffer: 64 * 1024 ** 2,
      env: { PATH: process.env["PATH"], ...env },
    };
    execFile(process.execPath, [suite, ...args], options, (error, stdout, stderr) => {
      rmSync(cwd, { recursive: true });
      resolve({ code: error?.code ?? 0, said: stdout + stderr });
    });
  });
}

test.each([
  // The server of this scenario requires more scopes after every sign-in.
  ["auth", ["scope-retry-limit"]],
  ["backcompat", ["2025-03-26-oauth-endpoint-fallback"]],
  // The metadata of this server names another resource.
  ["draft", ["resource-mismatch"]],
])(
  "in the scenarios of %s, the suite finds only expected faults, and each but %j ends with an authorized call",
  async (name, notLetIn) => {
    model.script(({ messages, tools }: Json) =>
      messages.at(-1).role === "user" && tools?.length > 0
        ? { calls: [{ name: tools[0].function.name, arguments: "{}" }] }
        : { text: ["Done."] },
    );
    const command = `${process.execPath} ${program}`;
    const { code, said } = await run(
      [
        "client",
        "--suite",
        name,
        "--command",
        command,
        "--timeout",
        "90000",
        "--expected-failures",
        "left-out.yml",
      ],
      {
        KONTOR_URL: host.baseUrl,
        KONTOR_TOKEN: owner.token,
        KONTOR_MODEL: JSON.stringify(await modelConfig(owner, model.url)),
      },
    );
    expect(code, said).toBe(0);
    const failed = said.matchAll(/^(\S+) was not let in: /gm).map(([, scenario]) => scenario);
    expect([...failed]).toEqual(notLetIn.map((scenario) => `auth/${scenario}`));
  },
  120_000,
);
