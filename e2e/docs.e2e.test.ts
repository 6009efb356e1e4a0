/** The documentation, run as a reader would paste it: the README's five minutes, and docs/sandbox.md, docs/platform.md, docs/functions.md, docs/addons.md and docs/backups.md whole. */
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { startReceiver, type Receiver } from "@kontor/server/sandbox/testing/receiver.ts";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { server } from "./fixtures.ts";
import { type Server, startServer } from "./server.ts";

const read = (file: string) => readFileSync(new URL(`../${file}`, import.meta.url), "utf8");
const readme = read("README.md");

/** The shell blocks of a page. */
const shell = (page: string) => [...page.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, code]) => code ?? "");

/** The same lines, with the addresses and the token of a server of this run. */
function pasted(code: string, at: Server, hook = ""): string {
  return code
    .replace(/^base=.*$/gm, `base=${at.baseUrl}`)
    .replace(/^token=.*$/gm, `token=${at.token}`)
    .replace(/^ca=.*$/gm, `ca=${at.dataDir}/ca.crt`)
    .replace(/^hook=.*$/gm, `hook=${hook}`);
}

async function bash(script: string, timeout = 60_000): Promise<string> {
  const somebody = { NAME: "Ada", EMAIL: "ada@example.org" };
  const env = Object.fromEntries(
    Object.entries(somebody).flatMap(([key, value]) => [
      [`GIT_AUTHOR_${key}`, value],
      [`GIT_COMMITTER_${key}`, value],
    ]),
  );
  const options = { timeout, env: { ...process.env, ...env } };
  return (await promisify(execFile)("bash", ["-euo", "pipefail", "-c", script], options)).stdout;
}

/** The shell blocks of the README after the one that starts a server: a sandbox, then an app. */
const [, firstSandbox = "", firstApp = ""] = shell(readme);

test("runs the README's first sandbox", async () => {
  const script = pasted(firstSandbox, server);
  expect(script).toContain(server.baseUrl);
  const stdout = await bash(script);
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

/** The parts of a page, each with its shell; the first is what all others stand on. */
function sectionsOf(file: string): { prelude: string; sections: { title: string; code: string }[] } {
  const [before, ...sections] = read(file)
    .split(/^## /m)
    .slice(1)
    .map((text) => ({ title: text.slice(0, text.indexOf("\n")), code: shell(text).join("\n") }));
  expect(before?.title).toBe("Before you start");
  return { prelude: before?.code ?? "", sections };
}

/** What stands behind `# →` is in the output, in that order. */
function expectShown(code: string, stdout: string): void {
  const expected = [...code.matchAll(/^# → (.*)$/gm)].map(([, text]) => text ?? "");
  expect(expected.length, "a part that shows no result").toBeGreaterThan(0);
  let rest = stdout;
  for (const line of expected) {
    const parts = line.split("…").map((part) => RegExp.escape(part));
    const at = new RegExp(parts.join("[^]*?")).exec(rest);
    expect(at, `no "${line}" in:\n${rest}`).not.toBeNull();
    rest = rest.slice((at?.index ?? 0) + (at?.[0].length ?? 0));
  }
}

describe("docs/sandbox.md", () => {
  const { prelude, sections } = sectionsOf("docs/sandbox.md");
  let own: Server;
  let receiver: Receiver;

  beforeAll(async () => {
    // The page's webhook is on the loopback here, which a server does not call unless it is told that it may.
    own = await startServer({ KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8" }, [
      "debian-12",
      "node-22",
      "code-interpreter",
    ]);
    receiver = await startReceiver();
  });
  afterAll(async () => {
    await receiver?.close();
    await own?.destroy();
  });

  test.for(sections)("$title", async ({ code }) => {
    expectShown(code, await bash(pasted(`${prelude}\n${code}`, own, receiver.url)));
    // What a section made goes with it, so that the next one finds room.
    await bash(
      `${pasted(prelude, own)}\napi "$base/v1/sandboxes?limit=100" | { grep -o '"id":"sbx_[^"]*"' || true; } | cut -d '"' -f 4 | while read -r id; do api -X DELETE $base/v1/sandboxes/$id; done`,
    );
  });
});

const walks = [
  { page: "docs/platform.md", templates: ["debian-12", "node-22"] },
  { page: "docs/functions.md", templates: ["debian-12", "node-22"] },
  { page: "docs/addons.md", templates: ["debian-12", "postgres-15", "redis-7"] },
  { page: "docs/backups.md", templates: ["debian-12", "postgres-15"] },
];

describe.for(walks)("$page", ({ page, templates }) => {
  const { prelude, sections } = sectionsOf(page);
  let own: Server;
  let home: string;

  beforeAll(async () => {
    own = await startServer({}, templates);
    home = mkdtempSync(join(tmpdir(), "kontor-docs-"));
  });

  test.runIf(page === "docs/platform.md")("runs the README's first app", { timeout: 300_000 }, async () => {
    const prelude = pasted(firstSandbox.slice(0, firstSandbox.indexOf("\n\n")), own);
    const app = firstApp.replaceAll("/var/lib/kontor", own.dataDir);
    const stdout = await bash(`cd ${home}\n${prelude}\n${app}`, 280_000);
    expect(stdout).toContain("<h1>It works</h1>");
  });

  afterAll(async () => {
    rmSync(home ?? "", { recursive: true, force: true });
    await own?.destroy();
  });

  // One walk: what a part sets and where it stands, the next one has.
  test.for(sections.filter(({ code }) => code !== ""))("$title", { timeout: 600_000 }, async ({ code }) => {
    const walk = `cd ${home}\n[ ! -f .state ] || . ./.state\n${pasted(code, own)}`;
    const keep = `{ set | grep -E '^[a-z]+=' | grep -v '^_'; echo "cd $PWD"; } > ${home}/.state`;
    expectShown(code, await bash(`${pasted(prelude, own)}\n${walk}\n${keep}`, 580_000));
  });
});
