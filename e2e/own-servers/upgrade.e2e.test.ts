/**
 * The server of this checkout takes over a data directory of an earlier commit, with every feature in use.
 */
import { mkdtempSync, readFileSync, renameSync, rmSync, symlinkSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Redis } from "ioredis";
import pg from "pg";
import { run } from "@kontor/runtime/exec.ts";
import { type ModelServer, startModelServer } from "@kontor/server/agent/testing/model-server.ts";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  type Addon,
  type Backup,
  backedUp,
  createAddon,
  restoreAndWait,
  running,
} from "../support/addons.ts";
import { base64, eventually } from "../support/answers.ts";
import { linkImages } from "../support/images.ts";
import { codeOf, hasCommit, linkImagesOf } from "../support/older-code.ts";
import {
  dockerfile,
  waitForDeployment,
  makeProject,
  type Project,
  push,
  saying,
  visit,
} from "../support/projects.ts";
import { type Server, startServer } from "../support/server.ts";

const oldest = "b7f1036";
const checkout = join(import.meta.dirname, "../..");
const templates = ["debian-12", "node-22", "code-interpreter", "redis-7", "postgres-15"];

describe.skipIf(!(await hasCommit(oldest)))(
  `an installation of ${oldest} (skipped if the clone lacks it)`,
  () => {
    const place = mkdtempSync(join(tmpdir(), "kontor-upgrade-"));
    /** Path of the code before and after the switch, as for a checkout that is updated in place. */
    const code = join(place, "code");
    let server: Server;
    let model: ModelServer;
    const before: Partial<Installation> = {};
    const installation = () => before as Installation;

    beforeAll(async () => {
      const older = await codeOf(oldest);
      model = await startModelServer();
      symlinkSync(older, code);
      const env = {
        KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8",
        KONTOR_ADDONS_PORTS: "25420-25429",
        KONTOR_POOL_SIZE: "1",
        KONTOR_PREPARE_TEMPLATES: "debian-12",
      };
      server = await startServer(env, templates, {
        isKept: true,
        code,
        link: (dataDir, names) => linkImagesOf(older, dataDir, names),
      });
      await Promise.all([
        fillSandboxes(server, before),
        fillPlatform(server, before),
        fillAgents(server, model, before),
      ]);
      // Without the link, the image of a new recipe would be made in the background, which takes minutes.
      await linkImages(server.dataDir, templates);
      await replaceCode(server, code);
    }, 600_000);
    afterAll(async () => {
      await server?.destroy();
      rmSync(place, { recursive: true, force: true });
    });

    test("migrates the database and logs no error", async () => {
      const rows = await server.sql("select name from migrations order by name desc limit 1", []);
      expect(String(rows[0]?.["name"]) > "0074").toBe(true);
      expect(server.log.split("\n").filter((line) => /"level":"(error|fatal)"/.test(line))).toEqual([]);
    });

    test("the old shim refuses kontor upgrade, and names the cure", async () => {
      const argv = [process.execPath, join(checkout, "cli/src/main.ts"), "upgrade", "--data", server.dataDir];
      const env = { PATH: process.env["PATH"] ?? "", HOME: "/root" };
      const refused = await run(argv, { env, okCodes: [0, 1], timeoutMs: 60_000 });
      expect([refused.code, refused.stderr]).toEqual([
        1,
        expect.stringContaining("started by an older Kontor"),
      ]);
      expect(refused.stderr).toContain("kontor down");
    });

    test("keeps a running sandbox with its files, processes and command output", async () => {
      const { sandbox, pid, command } = installation();
      expect(await exec(server, sandbox, `cat /workspace/note; kill -0 ${pid} && echo alive`)).toBe(
        "kept\nalive\n",
      );
      const logs = await server.api("GET", `/v1/sandboxes/${sandbox}/commands/${command}/logs`);
      expect(logs.body.chunks[0].data).toContain(base64("tick\ntick\n").slice(0, 9));
      const after = await server.api("GET", `/v1/sandboxes/${sandbox}/commands/${command}`);
      expect(after.body).toMatchObject({ status: "running" });
      const paused = await server.api("POST", `/v1/sandboxes/${sandbox}/pause`);
      expect(paused.status, JSON.stringify(paused.body)).toBeLessThan(300);
      await statusOf(server, sandbox, "paused");
      await resume(server, sandbox);
      expect(await exec(server, sandbox, `kill -0 ${pid} && echo alive`)).toBe("alive\n");
    });

    test("resumes a paused sandbox with its files and processes", async () => {
      const { paused, pausedPid } = installation();
      await resume(server, paused);
      expect(await exec(server, paused, `cat /workspace/note; kill -0 ${pausedPid} && echo alive`)).toBe(
        "slept\nalive\n",
      );
    });

    test("keeps variables of a code context", async () => {
      const body = { code: "n * 7" };
      const ran = await must<{ results: unknown[] }>(
        server,
        "POST",
        `/v1/sandboxes/${installation().coder}/code`,
        body,
      );
      expect(ran.results).toMatchObject([{ type: "text", text: "42" }]);
    });

    test("creates a sandbox from a named snapshot", async () => {
      const { id } = await must<{ id: string }>(server, "POST", "/v1/sandboxes", { snapshot: "prepared" });
      const { pausedPid } = installation();
      expect(await exec(server, id, `cat /workspace/note; kill -0 ${pausedPid} && echo alive`)).toBe(
        "slept\nalive\n",
      );
    });

    test("keeps the content of a volume", async () => {
      const body = { template: "debian-12", volume: "data" };
      const { id } = await must<{ id: string }>(server, "POST", "/v1/sandboxes", body);
      expect(await exec(server, id, "cat /persist/note")).toBe("on the volume\n");
    });

    test("wakes an app that was asleep", async () => {
      const { asleep } = installation();
      const path = `/api/v1/projects/${asleep.id}`;
      expect((await server.api("GET", path)).body).toMatchObject({ status: "asleep" });
      expect(await visit(server, asleep)).toEqual({ status: 200, text: "woken" });
    });

    test("serves an app, and deploys the next commit", async () => {
      const { project } = installation();
      expect(await visit(server, project)).toEqual({ status: 200, text: "first" });
      await push(server, project, { Dockerfile: dockerfile(), "server.js": saying("second") });
      expect(await waitForDeployment(server, project)).toMatchObject({ status: "live", error: null });
      expect(await visit(server, project)).toEqual({ status: 200, text: "second" });
    }, 120_000);

    test("serves requests to a function, and deploys it again", async () => {
      const { fn, slug } = installation();
      expect(await ask(server, slug)).toEqual({ status: 200, text: "greeting moin" });
      const invoked = await server.api("POST", `/api/v1/functions/${fn}/invoke`, { body: {} });
      expect(invoked.body).toMatchObject({ status: 200, body: "greeting moin" });
      const again = await server.api("POST", `/api/v1/functions/${fn}/deploy`);
      expect(again.body, JSON.stringify(again.body)).toMatchObject({ status: "live" });
      expect(await ask(server, slug)).toEqual({ status: 200, text: "greeting moin" });
    }, 120_000);

    test("keeps the data of an add-on", async () => {
      const addon = await running(server, installation().addon);
      const redis = new Redis(addon.public_connection_url ?? "", { maxRetriesPerRequest: 3 });
      redis.on("error", () => {});
      try {
        expect(await redis.get("kept")).toBe("yes");
      } finally {
        redis.disconnect();
      }
    });

    test("restores an add-on from a backup that was made before the upgrade", async () => {
      const { postgres, backup } = installation();
      await query(server, postgres, "delete from notes");
      await restoreAndWait(server, postgres, backup);
      expect(await query(server, await running(server, postgres), "select text from notes")).toEqual([
        { text: "backed up" },
      ]);
    }, 120_000);

    test("resumes the parked machine of an agent's session", async () => {
      const { session_id } = installation();
      model.script([
        { calls: [{ name: "exec", arguments: JSON.stringify({ command: "cat file" }) }] },
        { text: ["Read."] },
      ]);
      const body = { input: "Go on.", session_id, wait_s: 50 };
      const run = await must<object>(server, "POST", "/v1/agents/keeper/invoke", body);
      expect(run).toMatchObject({ status: "completed", output: "Read." });
      expect(JSON.stringify(model.asked.at(-1))).toContain("parked content");
    });

    test("completes a run that waited for an approval", async () => {
      const { run_id, request_id } = installation();
      const waiting = (await server.api("GET", `/v1/agents/runs/${run_id}`)).body;
      expect(waiting).toMatchObject({ status: "pending_approval" });
      model.script([{ text: ["It is done."] }]);
      const decided = await server.api("POST", `/v1/agents/runs/${run_id}/approvals/${request_id}`, {
        body: { decision: "approve" },
      });
      expect(decided.status, JSON.stringify(decided.body)).toBeLessThan(300);
      const over = await eventually(
        async () => (await server.api("GET", `/v1/agents/runs/${run_id}`)).body,
        ({ finished_at }) => finished_at !== null,
        60_000,
      );
      expect(over).toMatchObject({ status: "completed", output: "It is done." });
      expect(over.tools_called).toMatchObject([{ tool: "exec", status: "completed" }]);
    }, 90_000);
  },
);

interface Installation {
  sandbox: string;
  pid: string;
  command: string;
  paused: string;
  pausedPid: string;
  coder: string;
  project: Project;
  asleep: Project;
  postgres: Addon;
  backup: Backup;
  session_id: string;
  addon: Addon;
  fn: string;
  slug: string;
  run_id: string;
  request_id: string;
}

/** Points the link to this checkout, and restarts the server while its sockets stay open. Visitors wait meanwhile. */
async function replaceCode(server: Server, link: string): Promise<void> {
  const { pid } = server;
  symlinkSync(checkout, `${link}.next`);
  renameSync(`${link}.next`, link);
  const keeper = Number(/^PPid:\s+(\d+)$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
  process.kill(keeper, "SIGHUP");
  const visitor = fetch(`${server.baseUrl}/healthz`);
  await eventually(
    async () => server.pid !== undefined && server.pid !== pid && (await server.api("GET", "/readyz")).status,
    (status) => status === 200,
    120_000,
  );
  expect((await visitor).status).toBe(200);
}

async function must<T>(server: Server, method: string, path: string, body?: object): Promise<T> {
  const reply = await server.api(method, path, body === undefined ? {} : { body });
  expect(reply.status, `${method} ${path}: ${JSON.stringify(reply.body)}`).toBeLessThan(300);
  return reply.body as T;
}

async function exec(server: Server, sandbox: string, command: string): Promise<string> {
  const { stdout } = await must<{ stdout: string }>(server, "POST", `/v1/sandboxes/${sandbox}/exec`, {
    command,
  });
  return stdout;
}

async function statusOf(server: Server, sandbox: string, status: string): Promise<void> {
  await eventually(
    async () => (await server.api("GET", `/v1/sandboxes/${sandbox}`)).body,
    (one) => one.status === status,
    60_000,
  );
}

async function resume(server: Server, sandbox: string): Promise<void> {
  await must(server, "POST", `/v1/sandboxes/${sandbox}/resume`);
  await statusOf(server, sandbox, "running");
}

async function createSandbox(server: Server, note: string): Promise<{ id: string; pid: string }> {
  const body = { template: "debian-12", timeout_seconds: 1800 };
  const { id } = await must<{ id: string }>(server, "POST", "/v1/sandboxes", body);
  const content = base64(`${note}\n`);
  await must(server, "POST", `/v1/sandboxes/${id}/files`, { path: "/workspace/note", content });
  const pid = await exec(server, id, "nohup sleep 3000 >/dev/null 2>&1 & echo $!");
  return { id, pid: pid.trim() };
}

async function fillSandboxes(server: Server, made: Partial<Installation>): Promise<void> {
  const kept = await createSandbox(server, "kept");
  const command = await must<{ id: string }>(server, "POST", `/v1/sandboxes/${kept.id}/commands`, {
    command: "while :; do echo tick; sleep 1; done",
  });
  const slept = await createSandbox(server, "slept");
  await must(server, "POST", `/v1/sandboxes/${slept.id}/snapshots`, { name: "prepared" });
  await must(server, "POST", `/v1/sandboxes/${slept.id}/pause`);
  await statusOf(server, slept.id, "paused");
  const { id: coder } = await must<{ id: string }>(server, "POST", "/v1/sandboxes", {
    template: "code-interpreter",
    timeout_seconds: 1800,
  });
  await must(server, "POST", `/v1/sandboxes/${coder}/code`, { code: "n = 6" });
  await must(server, "POST", "/v1/sandboxes/volumes", { name: "data", size_gb: 1 });
  const holder = { template: "debian-12", volume: "data" };
  const { id: writer } = await must<{ id: string }>(server, "POST", "/v1/sandboxes", holder);
  await exec(server, writer, "echo on the volume > /persist/note");
  await must(server, "DELETE", `/v1/sandboxes/${writer}`);
  Object.assign(made, {
    coder,
    sandbox: kept.id,
    pid: kept.pid,
    command: command.id,
    paused: slept.id,
    pausedPid: slept.pid,
  });
}

async function fillPlatform(server: Server, made: Partial<Installation>): Promise<void> {
  const project = await makeProject(server);
  await push(server, project, { Dockerfile: dockerfile(), "server.js": saying("first") });
  expect(await waitForDeployment(server, project)).toMatchObject({ status: "live", error: null });
  const asleep = await makeProject(server);
  await push(server, asleep, { Dockerfile: dockerfile(), "server.js": saying("woken") });
  expect(await waitForDeployment(server, asleep)).toMatchObject({ status: "live", error: null });
  await must(server, "POST", `/api/v1/projects/${asleep.id}/sleep`);
  const postgres = await createAddon(server, project.id, { kind: "postgres", size: "small", public: true });
  await query(server, postgres, "create table notes (text text); insert into notes values ('backed up')");
  const backup = await backedUp(server, postgres);
  const addon = await createAddon(server, project.id, { kind: "redis", size: "small", public: true });
  const redis = new Redis(addon.public_connection_url ?? "", { maxRetriesPerRequest: 3 });
  redis.on("error", () => {});
  await redis.set("kept", "yes");
  redis.disconnect();
  const fn = await must<{ id: string; slug: string }>(server, "POST", "/api/v1/functions", {
    name: "greeter",
    runtime: "nodejs",
    handler_code: "export default () => new Response(`greeting ${process.env.GREETING}`);",
    env_vars: { GREETING: "moin" },
  });
  const deployed = await must<{ status: string }>(server, "POST", `/api/v1/functions/${fn.id}/deploy`);
  expect(deployed).toMatchObject({ status: "live" });
  Object.assign(made, { project, asleep, postgres, backup, addon, fn: fn.id, slug: fn.slug });
}

async function fillAgents(server: Server, model: ModelServer, made: Partial<Installation>): Promise<void> {
  const { id: credential_id } = await must<{ id: string }>(server, "POST", "/v1/model-credentials", {
    provider: "openai_compatible",
    name: "local",
    api_key: "none-needed",
    base_url: model.url,
  });
  const config = {
    model: { provider: "openai_compatible", id: "scripted", credential_id },
    vm: { policy: "ask" },
  };
  await must(server, "POST", "/v1/agents", { name: "clerk", config });
  const keeper = { ...config, vm: { park_after_seconds: 1 } };
  await must(server, "POST", "/v1/agents", { name: "keeper", config: keeper });
  model.script([
    { calls: [{ name: "exec", arguments: JSON.stringify({ command: "echo parked content > file" }) }] },
    { text: ["Written."] },
  ]);
  const { session_id } = await must<{ session_id: string }>(server, "POST", "/v1/agents/keeper/invoke", {
    input: "Go on.",
    wait_s: 50,
  });
  await eventually(
    async () => (await server.api("GET", `/v1/agents/keeper/sessions/${session_id}`)).body,
    ({ vm }) => vm.status === "parked",
    60_000,
  );
  model.script([{ calls: [{ name: "exec", arguments: JSON.stringify({ command: "echo done" }) }] }]);
  const asked = await must<{ run_id: string; status: string; approval: { request_id: string } }>(
    server,
    "POST",
    "/v1/agents/clerk/invoke",
    { input: "Go on.", wait_s: 50 },
  );
  expect(asked).toMatchObject({ status: "pending_approval" });
  Object.assign(made, { session_id, run_id: asked.run_id, request_id: asked.approval.request_id });
}

async function query(server: Server, { id, project_id }: Addon, text: string): Promise<unknown[]> {
  const path = `/api/v1/projects/${project_id}/addons/${id}`;
  const { public_connection_url } = await must<Addon>(server, "GET", path);
  const client = new pg.Client({
    connectionString: public_connection_url ?? "",
    connectionTimeoutMillis: 10_000,
  });
  client.on("error", () => {});
  await client.connect();
  try {
    return (await client.query(text)).rows as unknown[];
  } finally {
    await client.end();
  }
}

/** Requests a function at its own address. */
function ask(server: Server, slug: string): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const { port } = server.description;
    const headers = { host: `${slug}.fn.apps.localhost` };
    const request = http.get({ host: "127.0.0.1", port, path: "/", headers, agent: false });
    request.once("error", reject);
    request.once("response", (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (piece: string) => (text += piece));
      response.once("error", reject);
      response.once("end", () => resolve({ status: response.statusCode ?? 0, text }));
    });
  });
}
