/** The protocol's own conformance suite, on how clients are let in. */
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
 * Scenarios that find something, and why that is meant. Those of extensions are not run: in client-credentials-jwt,
 * client-credentials-basic and cross-app-access-complete-flow nobody signs in.
 */
const leftOut = {
  "auth/basic-cimd":
    "wants its own document's address as the client's id; ours has its own, and an https base",
  "auth/2025-03-26-oauth-endpoint-fallback": "has no metadata, so nobody says that PKCE is checked",
};

const model = await startModelServer();
const host = await agentHost({
  config: { port: String(await freePort()), allowPrivateHosts: "localhost,127.0.0.0/8,::1" },
});
const owner = await host.person();

/** What it says, whatever came of it. */
async function run(
  args: readonly string[],
  env: Record<string, string>,
): Promise<{ code: unknown; said: string }> {
  // It leaves its results where it is started.
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
  // Whose scope never suffices, whatever somebody grants.
  ["auth", ["scope-retry-limit"]],
  ["backcompat", ["2025-03-26-oauth-endpoint-fallback"]],
  // Whose metadata is of another resource.
  ["draft", ["resource-mismatch"]],
])(
  "the suite's scenarios of %s find nothing wrong but what is meant, and all but %j end with a call that is let in",
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
