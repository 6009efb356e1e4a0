/** A git repository on the server, with real git clients. */
import { createHmac } from "node:crypto";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { run } from "@kontor/runtime/exec.ts";
import { expectRefusal } from "../support/answers.ts";
import { startServer, type Server } from "../support/server.ts";

let server: Server;
let directory: string;

beforeAll(async () => {
  server = await startServer({ KONTOR_POOL_SIZE: "0", KONTOR_POOL_MAX: "0" });
  directory = await mkdtemp(join(tmpdir(), "kontor-e2e-git-"));
});
afterAll(async () => {
  await server?.destroy();
  await rm(directory, { recursive: true, force: true });
});

const git = (cwd: string, ...args: string[]) =>
  run(["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.test", ...args], {
    cwd,
    env: { PATH: process.env["PATH"], HOME: directory, GIT_TERMINAL_PROMPT: "0" },
    timeoutMs: 60_000,
  });

/** Creates a project. Returns the address of its repository, with the operator's token. */
async function create(name: string): Promise<{ id: string; url: string }> {
  const made = await server.api("POST", "/api/v1/projects", { body: { name, auto_deploy: false } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  const url = new URL(made.body.git_url as string);
  expect(url.pathname).toBe(`/git/${name}.git`);
  Object.assign(url, { username: "any", password: server.token });
  return { id: made.body.id, url: url.href };
}

test("a clone contains the pushed commits, even after the server was killed", async () => {
  const { url } = await create("e2e-git");
  await git(directory, "init", "--quiet", "--initial-branch=main", "work");
  const work = join(directory, "work");
  await writeFile(join(work, "index.html"), "hello");
  await git(work, "add", ".");
  await git(work, "commit", "--quiet", "-m", "first");
  const { stderr } = await git(work, "push", url, "main");
  expect(stderr).toContain("remote: main is stored and not deployed: auto-deploy is off");
  await server.kill9();
  await server.start();
  await git(directory, "clone", "--quiet", url, "copy");
  expect(await readFile(join(directory, "copy", "index.html"), "utf8")).toBe("hello");
});

test("deleting a project deletes its repository", async () => {
  const { id, url } = await create("e2e-git-gone");
  await git(join(directory, "work"), "push", "--quiet", url, "main");
  expect((await server.api("DELETE", `/api/v1/projects/${id}`)).status).toBe(204);
  await expect(git(directory, "ls-remote", url)).rejects.toThrow("No such repository");
});

test("limits a webhook to 8 MiB per delivery and sixty deliveries per minute", async () => {
  const made = await server.api("POST", "/api/v1/projects", {
    body: { name: "e2e-hooked", repo_url: "https://forge.test/team/shop.git" },
  });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  const { url, secret } = made.body.webhook as { url: string; secret: string };
  const path = new URL(url).pathname;
  const deliver = (text: string) =>
    server.api("POST", path, {
      token: null,
      text,
      headers: {
        "x-github-event": "ping",
        "x-hub-signature-256": `sha256=${createHmac("sha256", secret).update(text).digest("hex")}`,
      },
    });
  const bodyOfSize = (bytes: number) => JSON.stringify({ zen: "x".repeat(bytes - '{"zen":""}'.length) });
  expect((await deliver(bodyOfSize(8 * 1024 ** 2))).body).toMatchObject({ result: "ignored" });
  expectRefusal(await deliver(bodyOfSize(8 * 1024 ** 2 + 1)), 413, "payload_too_large");
  let refused = await deliver("{}");
  for (let n = 0; n < 100 && refused.status === 202; n += 1) refused = await deliver("{}");
  expectRefusal(refused, 429, "rate_limited");
  expect(Number(refused.headers.get("retry-after"))).toBeGreaterThan(0);
});
