import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { server } from "./fixtures.ts";

const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");

/** The README's shell blocks, as a reader would paste them. */
const blocks = [...readme.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, code]) => code ?? "");

test("the README's five minutes do what they say", async () => {
  const example = blocks.find((code) => code.includes("base="));
  expect(example).toBeDefined();
  // The reader's server is this run's: the same lines, its address and its token.
  const script = (example ?? "")
    .replace(/^base=.*$/m, `base=${server.baseUrl}`)
    .replace(/^token=.*$/m, `token=${server.token}`);
  expect(script).toContain(server.baseUrl);
  const { stdout } = await promisify(execFile)("bash", ["-euc", script], { timeout: 60_000 });
  expect(stdout).toContain('"stdout":"Linux sbx-');
  expect(stdout).toContain("uid=0(root)");
  expect(stdout).toContain('"bytes_written":6');
  expect(stdout).toContain('"content":"aGVsbG8K"');
  expect(stdout).toContain('"status":"terminated","transition":null,"termination_reason":"requested"');
});

test("every command the README names is one this program has", async () => {
  const named = new Set([...readme.matchAll(/`?\.\/kontor ([a-z]+)/g)].map(([, verb]) => verb));
  const { stdout } = await promisify(execFile)(process.execPath, ["cli/src/main.ts", "--help"], {
    cwd: new URL("..", import.meta.url),
  });
  expect(named.size).toBeGreaterThan(5);
  for (const verb of named) expect(stdout).toMatch(new RegExp(`^\\s+${verb}\\b`, "m"));
});
