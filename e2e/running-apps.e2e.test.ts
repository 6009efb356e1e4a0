/** Running apps from outside. Visitors and owners observe memory, crashes, sleep and the end of the server. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, inject, onTestFinished, test } from "vitest";
import { eventually } from "./support/answers.ts";
import {
  dockerfile,
  waitForDeployment,
  makeProject,
  deleteProject,
  type Project,
  push,
  visit,
} from "./support/projects.ts";
import { type Server, startServer } from "./support/server.ts";

let server: Server;

beforeAll(async () => {
  const env = { KONTOR_POOL_SIZE: "0", KONTOR_RATE_LIMITS: "off", KONTOR_UPLINK: inject("internet") };
  server = await startServer(env, ["node-22"], { isKept: true });
});
afterAll(() => server?.destroy());

/** Returns the code of an app whose paths select its behaviour; `/` returns its process id. `before` runs first. */
const app = (before = "process.on('SIGTERM', () => process.exit(0));") => `
const fs = require("node:fs");
const me = require("node:crypto").randomUUID();
const failures = "/tmp/failures";
const left = fs.existsSync(failures) ? Number(fs.readFileSync(failures, "utf8")) : 0;
if (left > 0) {
  fs.writeFileSync(failures, String(left - 1));
  console.log("fails");
  process.exit(3);
}
${before}
const held = [];
const deeds = {
  "/hold": (megabytes) => held.push(Buffer.alloc(megabytes * 1024 ** 2, 1)),
  "/say": (text) => console.log(text),
  "/break": (times) => {
    fs.writeFileSync(failures, String(times - 1));
    setTimeout(() => process.exit(3), 50);
  },
};
const server = require("node:http").createServer((request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://app");
  deeds[pathname]?.(searchParams.get("x"));
  response.end(me);
});
server.on("upgrade", (request, socket) => {
  socket.write("HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n");
  socket.pipe(socket);
});
server.listen(process.env.PORT);
`;

async function deployApp(source = app()): Promise<Project> {
  const project = await makeProject(server);
  onTestFinished(() => deleteProject(server, project));
  await redeploy(project, source);
  return project;
}

async function redeploy(project: Project, source: string): Promise<void> {
  await push(server, project, { Dockerfile: dockerfile(), "server.js": source });
  expect(await waitForDeployment(server, project)).toMatchObject({ status: "live", error: null });
}

async function get(project: Project, what: string) {
  const { status, body } = await server.api("GET", `/api/v1/projects/${project.id}/${what}`);
  expect(status, JSON.stringify(body)).toBe(200);
  return body;
}

const linesOf = async (project: Project) =>
  ((await get(project, "logs?lines=1000")).lines as { text: string }[]).map(({ text }) => text);

test(
  "an app keeps its process when the server is killed, and only requests in flight fail",
  { timeout: 300_000 },
  async () => {
    const project = await deployApp();
    const { text: first } = await visit(server, project);
    const { pid } = server;
    let isOver = false;
    const answers = new Set<string>();
    const failures: string[] = [];
    const visitors = Array.from({ length: 4 }, async () => {
      while (!isOver) {
        await visit(server, project).then(
          ({ status, text }) => answers.add(`${status} ${text}`),
          (error: NodeJS.ErrnoException) => failures.push(String(error.code)),
        );
        await sleep(10);
      }
    });
    await sleep(200);
    process.kill(pid ?? 0, "SIGKILL");
    await eventually(
      async () => server.pid !== undefined && server.pid !== pid && (await visit(server, project)).status,
      (status) => status === 200,
      60_000,
    );
    isOver = true;
    await Promise.all(visitors);
    expect([...answers]).toEqual([`200 ${first}`]);
    // At most one request in flight of each visitor fails.
    expect(failures.filter((code) => code !== "ECONNRESET")).toEqual([]);
    expect(failures.length).toBeLessThanOrEqual(visitors.length);
    expect(await get(project, "health")).toMatchObject({ status: "running", restart_count: 0 });
  },
);

test("raises and reports an app's memory, up to its size's maximum", { timeout: 300_000 }, async () => {
  const project = await deployApp();
  const path = `/api/v1/projects/${project.id}/environments/${project.production_environment_id}`;
  expect((await server.api("PATCH", path, { body: { size: "medium" } })).status).toBe(200);
  await redeploy(project, `${app()}\n// medium`);
  const mib = 1024 ** 2;
  expect(await get(project, "stats")).toMatchObject({ memory_limit_bytes: 512 * mib });
  const { text: first } = await visit(server, project, "/hold?x=430");
  await eventually(
    () => get(project, "stats"),
    (stats) => stats.memory_limit_bytes === 1024 * mib,
  );
  expect((await visit(server, project, "/hold?x=300")).text).toBe(first);
  const stats = await eventually(
    () => get(project, "stats"),
    ({ memory_bytes }) => memory_bytes > 700 * mib,
  );
  expect(stats.memory_limit_bytes).toBe(1024 * mib);
  expect((await visit(server, project)).text).toBe(first);
});

test(
  "reports an app once as crashed after five exits in a row, and restarts the app once it works",
  { timeout: 300_000 },
  async () => {
    const project = await deployApp();
    const { text: before } = await visit(server, project);
    await visit(server, project, "/break?x=5");
    const crashed = await eventually(
      () => get(project, "health"),
      ({ status }) => status === "crashed",
      60_000,
    );
    expect(crashed).toMatchObject({ restart_count: 5, last_exit_code: 3 });
    expect((await visit(server, project)).status).toBe(503);
    const { body } = await server.api("GET", "/api/v1/notifications");
    const told = (body as { kind: string; title: string }[]).filter(({ kind }) => kind === "app_crashed");
    expect(told.map(({ title }) => title)).toEqual([`${project.slug} keeps ending`]);
    await eventually(
      () => get(project, "health"),
      ({ status }) => status === "running",
      60_000,
    );
    const { status, text } = await visit(server, project);
    expect(status).toBe(200);
    expect(text).not.toBe(before);
  },
);

test(
  "freezes an app that sleeps, frees its memory later, and wakes the app for a visitor",
  { timeout: 300_000 },
  async () => {
    const project = await deployApp();
    const { text: first } = await visit(server, project);
    const asleep = () => server.api("POST", `/api/v1/projects/${project.id}/sleep`);
    expect((await asleep()).body).toMatchObject({ status: "asleep" });
    // The process is the same process that was frozen.
    expect(await visit(server, project)).toEqual({ status: 200, text: first });
    expect((await asleep()).body).toMatchObject({ status: "asleep" });
    expect(await machinesOf(project)).toHaveLength(1);
    await server.sql(
      "update environments set asleep_since = asleep_since - interval '16 minutes' where id = $1",
      [project.production_environment_id],
    );
    await eventually(
      () => machinesOf(project),
      ({ length }) => length === 0,
    );
    expect(await get(project, "health")).toMatchObject({ status: "asleep", uptime_seconds: 0 });
    const woken = await Promise.all(Array.from({ length: 5 }, () => visit(server, project)));
    const second = woken[0]?.text;
    expect(woken).toEqual(woken.map(() => ({ status: 200, text: second })));
    expect(second).not.toBe(first);
    expect(await get(project, "health")).toMatchObject({ status: "running", restart_count: 0 });
  },
);

test("kills an app that ignores SIGTERM after ten seconds", { timeout: 300_000 }, async () => {
  const deaf = `process.on("SIGTERM", () => {
    console.log("asked to end");
    setInterval(() => console.log("still here"), 1000);
  });`;
  const project = await deployApp(app(deaf));
  const [{ id: machine } = {}] = await machinesOf(project);
  await redeploy(project, app());
  await eventually(
    () => machinesOf(project),
    (machines) => machines.every(({ id }) => id !== machine),
  );
  const lines = await linesOf(project);
  expect(lines).toContain("asked to end");
  expect(lines.filter((line) => line === "still here").length).toBeGreaterThanOrEqual(5);
  expect((await visit(server, project)).status).toBe(200);
});

async function machinesOf({ production_environment_id }: Project): Promise<{ id: string }[]> {
  const text =
    "select m.id from machines m join app_instances i on m.owner_id = i.id where i.environment_id = $1";
  return (await server.sql(text, [production_environment_id])) as { id: string }[];
}

test("follows an app's logs, and continues after the last received line", { timeout: 300_000 }, async () => {
  const project = await deployApp();
  await visit(server, project, "/say?x=before");
  const path = `${server.baseUrl}/api/v1/projects/${project.id}/logs?follow=true&lines=10`;
  const follow = async (until: string, last?: string): Promise<{ id: string; texts: string[] }> => {
    const headers = {
      authorization: `Bearer ${server.token}`,
      ...(last === undefined ? {} : { "last-event-id": last }),
    };
    const response = await fetch(path, { headers });
    expect(response.headers.get("content-type")).toContain("text/event-stream");
    let rest = "";
    let id = "";
    const texts: string[] = [];
    const decoder = new TextDecoder();
    for await (const bytes of response.body ?? []) {
      rest += decoder.decode(bytes as Uint8Array, { stream: true });
      const blocks = rest.split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const data = /^data: (.*)$/m.exec(block)?.[1];
        if (data === undefined) continue;
        id = /^id: (\d+)$/m.exec(block)?.[1] ?? id;
        const { text } = JSON.parse(data) as { text: string };
        texts.push(text);
        if (text === "before") void visit(server, project, "/say?x=while");
        if (text === until) {
          return { id, texts };
        }
      }
    }
    throw new Error(`the stream ended: ${texts.join(", ")}`);
  };
  const { id, texts } = await follow("while");
  expect(texts).toContain("before");
  await visit(server, project, "/say?x=between");
  expect((await follow("between", id)).texts).toEqual(["between"]);
});
