/**
 * Repositories like those of users (e2e/apps), each pushed to its own project. The file `expect.json` of a repository
 * has the detected kind, the outcome and the response.
 */
import { execFile } from "node:child_process";
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import https from "node:https";
import type { LookupFunction } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { TEST_IMAGES } from "@kontor/runtime/rootfs/testing/image.ts";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { WebSocket } from "ws";
import { eventually } from "../support/answers.ts";
import { type Server, startServer } from "../support/server.ts";

interface Expectation {
  framework?: string;
  root_directory?: string;
  env?: Record<string, string>;
  outcome?: "live" | "failed";
  /** Failed step of a deployment, and its expected error. */
  step?: string;
  error?: string;
  /** Text that the app's log must contain. */
  log?: string;
  image?: { maxMb: number };
  paths?: Record<string, { status: number; text: string }>;
  webSocket?: { send: string; receive: string };
}

const apps = join(import.meta.dirname, "../apps");
const all = readdirSync(apps).map((name): [string, Expectation] => [
  name,
  JSON.parse(readFileSync(join(apps, name, "expect.json"), "utf8")) as Expectation,
]);
/**
 * True if the tests' cache has the Go toolchain. The image has a gigabyte and takes three minutes to make, so the tests
 * do not make it.
 */
const hasGo = existsSync(TEST_IMAGES) && readdirSync(TEST_IMAGES).some((id) => id.startsWith("golang-1.24"));
let server: Server;

beforeAll(async () => {
  // The packages of these bases come from the host's own package sources.
  const bases = ["debian-12", "node-22", "python-3.13", "static-site", ...(hasGo ? ["golang-1.24"] : [])];
  server = await startServer({ KONTOR_APP_START_SECONDS: "20" }, bases);
});
afterAll(() => server?.destroy());

interface Project {
  id: string;
  url: string;
  git_url: string;
}

async function createProject(name: string, { root_directory, env = {} }: Expectation): Promise<Project> {
  const body = { name, env_vars: env, ...(root_directory ? { root_directory } : {}) };
  const made = await server.api("POST", "/api/v1/projects", { body });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  onTestFinished(async () => {
    expect((await server.api("DELETE", `/api/v1/projects/${made.body.id}`)).status).toBe(204);
  });
  return made.body as Project;
}

/** Pushes a commit of the directory with the owner's token. Returns git's output. */
async function push(project: Project, directory: string): Promise<string> {
  const home = mkdtempSync(join(tmpdir(), "kontor-push-"));
  try {
    cpSync(directory, home, { recursive: true });
    rmSync(join(home, "expect.json"));
    const git = (...args: string[]) =>
      promisify(execFile)("git", ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", ...args], {
        cwd: home,
        env: { PATH: process.env["PATH"], HOME: home, GIT_CONFIG_NOSYSTEM: "1" },
      });
    await git("init", "--quiet", "--initial-branch=main");
    await git("add", ".");
    await git("commit", "--quiet", "--message=first");
    const to = project.git_url.replace("://", `://ada:${server.token}@`);
    return (await git("push", to, "main")).stderr;
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
}

interface Deployment {
  id: string;
  status: string;
  error: string | null;
  steps: { name: string; status: string }[];
}

async function waitForEnd(project: Project): Promise<Deployment> {
  const newest = async () => {
    const { body } = await server.api("GET", `/api/v1/projects/${project.id}/deployments`);
    return (body.items as Deployment[])[0];
  };
  const isOver = (one: Deployment | undefined) => ["live", "failed", "cancelled"].includes(one?.status ?? "");
  return (await eventually(newest, isOver, 300_000))!;
}

/**
 * Resolves every name to this host: browsers and curl resolve names below `localhost` so, but Node queries the
 * resolver.
 */
const toThisHost: LookupFunction = (_name, { all }, done) =>
  all ? done(null, [{ address: "127.0.0.1", family: 4 }]) : done(null, "127.0.0.1", 4);

function visit(url: string, path: string): Promise<{ status: number; text: string }> {
  const ca = readFileSync(join(server.dataDir, "ca.crt"));
  return new Promise((resolve, reject) => {
    const options = { ca, lookup: toThisHost, agent: false as const, timeout: 30_000 };
    const request = https.get(new URL(path, url), options, (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (piece: string) => (text += piece));
      response.once("error", reject);
      response.once("end", () => resolve({ status: response.statusCode ?? 0, text }));
    });
    request.once("timeout", () => request.destroy(new Error("no answer")));
    request.once("error", reject);
  });
}

function readEcho(url: string, message: string): Promise<string> {
  const ca = readFileSync(join(server.dataDir, "ca.crt"));
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(url.replace("https:", "wss:"), { ca, lookup: toThisHost });
    socket.once("open", () => socket.send(message));
    socket.once("error", reject);
    socket.once("message", (data) => {
      resolve((data as Buffer).toString());
      socket.terminate();
    });
  });
}

describe("a push of", () => {
  test.for(all)("%s", { timeout: 400_000 }, async ([name, expected], { skip }) => {
    skip(name === "go-stdlib" && !hasGo, "no image with Go is at hand");
    const project = await createProject(name, expected);
    const said = await push(project, join(apps, name));
    const deployment = await waitForEnd(project);
    const log = JSON.stringify(
      (await server.api("GET", `/api/v1/deployments/${deployment.id}/build-log`)).body,
    );
    expect(deployment.status, `${deployment.error}\n${said.slice(-3000)}`).toBe(expected.outcome ?? "live");
    for (const secret of Object.values(expected.env ?? {})) expect(`${said}${log}`).not.toContain(secret);
    if (expected.outcome === "failed") {
      const failed = deployment.steps.find(({ status }) => status === "failed");
      expect(failed?.name).toBe(expected.step);
      expect(`${deployment.error}${said}`).toContain(expected.error ?? "");
      expect(said).toContain(expected.log ?? "");
      return;
    }
    for (const [path, { status, text }] of Object.entries(expected.paths ?? {})) {
      const answer = await visit(project.url, path);
      expect(answer.status, path).toBe(status);
      expect(answer.text, path).toContain(text);
    }
    if (expected.image) {
      const { body } = await server.api("GET", `/api/v1/projects/${project.id}/images`);
      expect((body as { size_bytes: number }[])[0]?.size_bytes).toBeLessThan(expected.image.maxMb * 1e6);
      expect(said).not.toContain("apt-get");
    }
    if (expected.webSocket) {
      const { send, receive } = expected.webSocket;
      expect(await readEcho(project.url, send)).toBe(receive);
    }
    if (expected.log) {
      const runtime = () => server.api("GET", `/api/v1/projects/${project.id}/logs?lines=50`);
      await eventually(
        async () => JSON.stringify((await runtime()).body),
        (lines) => lines.includes(expected.log ?? ""),
      );
    }
  });
});
