/** From a push to an address, on real builds and real machines: what is served, what failed and why, and kill -9 on the way. */
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from "vitest";
import { eventually } from "./fixtures.ts";
import { type Server, startServer } from "./server.ts";

const run = promisify(execFile);
let server: Server;

beforeAll(async () => {
  server = await startServer({ KONTOR_POOL_SIZE: "0", KONTOR_APP_START_SECONDS: "10" }, ["node-22"]);
});
afterAll(() => server.destroy());
afterEach(async () => {
  delete server.description.env["KONTOR_KILL_AT"];
  await server.start();
});

interface Project {
  id: string;
  slug: string;
  git_url: string;
}

interface Deployment {
  id: string;
  number: number;
  status: string;
  error: string | null;
  steps: { name: string; status: string; duration_ms: number | null }[];
}

let made = 0;

async function makeProject(): Promise<Project> {
  const name = `shop-${(made += 1)}-${process.pid}`;
  const { status, body } = await server.api("POST", "/api/v1/projects", { body: { name } });
  expect(status, JSON.stringify(body)).toBe(201);
  onTestFinished(async () => void (await server.api("DELETE", `/api/v1/projects/${body.id}`)));
  return body as Project;
}

const dockerfile = (more = "") => `FROM node:22-slim
WORKDIR /srv
COPY server.js ./
${more}
USER 1000:1000
EXPOSE 4000
CMD ["node", "server.js"]
`;
const saying = (text: string) =>
  `require("node:http").createServer((_, a) => a.end(${JSON.stringify(text)})).listen(process.env.PORT);
process.on("SIGTERM", () => process.exit(0));`;

/** Pushes these files as one commit, and says what the pusher was told. */
async function push(project: Project, files: Record<string, string>): Promise<string> {
  const directory = mkdtempSync(join(tmpdir(), "kontor-push-"));
  const git = (...args: string[]) =>
    run("git", ["-c", "user.name=A", "-c", "user.email=a@example.test", ...args], { cwd: directory });
  try {
    await git("init", "-q", "-b", "main");
    for (const [name, text] of Object.entries(files)) writeFileSync(join(directory, name), text);
    await git("add", "-A");
    await git("commit", "-q", "-m", `commit ${Date.now()}`);
    const url = project.git_url.replace("://", `://x:${server.token}@`);
    const { stderr } = await git("push", "--force", url, "main");
    return stderr;
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

async function deployments(project: Project): Promise<Deployment[]> {
  const { body } = await server.api("GET", `/api/v1/projects/${project.id}/deployments`);
  return body.items as Deployment[];
}

async function ended(project: Project): Promise<Deployment> {
  const [newest] = await eventually(
    () => deployments(project),
    ([first]) => first !== undefined && !["queued", "building", "deploying"].includes(first.status),
    120_000,
  );
  return newest!;
}

function visit({ slug }: Project, path = "/"): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const { port } = server.description;
    const headers = { host: `${slug}.apps.localhost` };
    const request = http.get({ host: "127.0.0.1", port, path, headers, agent: false }, (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (piece: string) => (text += piece));
      response.on("end", () => resolve({ status: response.statusCode ?? 0, text }));
    });
    request.on("error", reject);
  });
}

test(
  "a push is built and served, the next one replaces it, a rollback takes it back",
  { timeout: 300_000 },
  async () => {
    const project = await makeProject();
    const told = await push(project, { Dockerfile: dockerfile(), "server.js": saying("one") });
    const first = await ended(project);
    expect(first.error).toBe(null);
    expect(first.status).toBe("live");
    expect(told).toContain("remote:");
    expect(await visit(project)).toEqual({ status: 200, text: "one" });

    await push(project, { Dockerfile: dockerfile(), "server.js": saying("two") });
    expect(await ended(project)).toMatchObject({ status: "live", number: 2, error: null });
    expect(await visit(project)).toEqual({ status: 200, text: "two" });

    const back = await server.api("POST", `/api/v1/deployments/${first.id}/rollback`);
    expect(back.status, JSON.stringify(back.body)).toBe(200);
    expect(await ended(project)).toMatchObject({ status: "live", number: 3, error: null });
    expect(await visit(project)).toEqual({ status: 200, text: "one" });
  },
);

test("what fails says why, and what was served is served on", { timeout: 300_000 }, async () => {
  const project = await makeProject();
  await push(project, { Dockerfile: dockerfile(), "server.js": saying("one") });
  expect(await ended(project)).toMatchObject({ status: "live", error: null });

  await push(project, {
    Dockerfile: dockerfile("RUN echo the stylesheet is missing && exit 3"),
    "server.js": saying("two"),
  });
  const unbuilt = await ended(project);
  expect(unbuilt.status).toBe("failed");
  expect(unbuilt.error).toContain("the stylesheet is missing");

  await push(project, {
    Dockerfile: dockerfile(),
    "server.js": "console.log('no database'); process.exit(7)",
  });
  const exited = await ended(project);
  expect(exited.status).toBe("failed");
  expect(exited.error).toMatch(/7[^]*no database/);

  await push(project, { Dockerfile: dockerfile(), "server.js": "setInterval(() => {}, 1000)" });
  const silent = await ended(project);
  expect(silent.status).toBe("failed");
  expect(silent.error).toContain("port 4000");
  expect(await visit(project)).toEqual({ status: 200, text: "one" });
});

test.each([
  "deploy.cloned",
  "deploy.built",
  "deploy.released",
  "deploy.healthy",
  "app.switched",
  "deploy.switched",
])(
  "kill -9 at %s: the next server goes on, and what was served is served meanwhile",
  { timeout: 300_000 },
  async (point) => {
    const project = await makeProject();
    await push(project, { Dockerfile: dockerfile(), "server.js": saying("one") });
    expect(await ended(project)).toMatchObject({ status: "live", error: null });
    await server.stop();
    server.description.env["KONTOR_KILL_AT"] = point;
    await server.start();
    expect(await visit(project)).toEqual({ status: 200, text: "one" });
    // The server that dies takes the push's answer with it.
    await push(project, { Dockerfile: dockerfile(), "server.js": saying("two") }).catch(() => {});
    await eventually(
      async () => server.pid,
      (pid) => pid === undefined,
      60_000,
    );
    delete server.description.env["KONTOR_KILL_AT"];
    await server.start();
    expect(await ended(project)).toMatchObject({ status: "live", number: 2, error: null });
    expect(await visit(project)).toEqual({ status: 200, text: "two" });
  },
);
