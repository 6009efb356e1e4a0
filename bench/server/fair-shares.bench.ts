/**
 * Measures the latency of one tenant beside a busy tenant that uses its maximum of a shared resource. The resources are
 * git, `analyze`, event streams, webhook deliveries, builds and agent runs.
 *
 * Each request is measured alone, then beside the busy tenant.
 */
import { once } from "node:events";
import { Agent, type ClientRequest, request } from "node:http";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { run as runProgram } from "@kontor/runtime/exec.ts";
import { systemActor } from "@kontor/server/accounts/activity/activity.ts";
import { openDatabase } from "@kontor/server/db/db.ts";
import type { Database } from "@kontor/server/schema.ts";
import type { Db } from "@kontor/server/schema.ts";
import { ensureEmbedded } from "@kontor/server/db/embedded/ensure-embedded.ts";
import { recordEvent } from "@kontor/server/sandbox/events/events.ts";
import { startReceiver } from "@kontor/server/sandbox/testing/receiver.ts";
import type { Server } from "../../e2e/support/server.ts";
import { makePerson, makeToken } from "../../server/test/factories.ts";
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { percentile, measureTime } from "../support/measure.ts";
import { withOwnServer, withoutPool } from "../support/own-server.ts";
import { startScriptedModel } from "../support/scripted-model.ts";

export const name = "fair-shares";

/** Bar of the ratio: beside the busy tenant, a request may take at most twice as long. */
const mostTimes = 2;
const rounds = 15;
const buildRounds = 3;
/** Wait in milliseconds, after which the busy tenant uses its maximum. */
const holdMs = 3_000;
const waitMs = 120_000;

interface Tenant {
  token: string;
  api: Api;
  workspaceId: string;
}

interface Scene {
  context: BenchContext;
  server: Server;
  db: Db;
  busy: Tenant;
  other: Tenant;
}

/** Releases the resources of the busy tenant. */
type Release = () => unknown;

export async function run(context: BenchContext): Promise<void> {
  const env = { ...withoutPool, KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8" };
  await withOwnServer(context, env, async (server) => {
    const { connection } = await ensureEmbedded(server.dataDir);
    const database = openDatabase<Database>(connection, { maxConnections: 8, onError: () => {} });
    try {
      const { db } = database;
      const scene = { context, server, db, busy: await tenant(server, db), other: await tenant(server, db) };
      for (const part of [git, analyses, streams, webhooks, runs, builds]) await part(scene);
    } finally {
      await database.close();
    }
  });
}

async function tenant(server: Server, db: Db): Promise<Tenant> {
  const { user, workspace } = await makePerson(db, {
    workspace: { plan: "team", sandbox_tier: "enterprise" },
  });
  const { plaintext: token } = await makeToken(db, user.id);
  return { token, api: new Api({ baseUrl: server.baseUrl, token }), workspaceId: workspace.id };
}

async function compare(
  { context }: Scene,
  what: string,
  {
    ask,
    hold,
    times = rounds,
  }: { ask: () => Promise<unknown>; hold: () => Promise<Release>; times?: number },
): Promise<void> {
  const sample = async () => {
    const samples: number[] = [];
    for (let n = 0; n < times; n += 1) samples.push((await measureTime(ask)).ms);
    return samples;
  };
  context.progress(`${what}: alone`);
  await ask();
  const alone = percentile(await sample(), 50);
  context.progress(`${what}: beside a busy tenant`);
  const release = await hold();
  try {
    await sleep(holdMs);
    const samples = await sample();
    const beside = percentile(samples, 50);
    context.report({
      what: `${what}, beside a busy tenant`,
      value: beside / alone,
      unit: "×",
      bar: { atMost: mostTimes },
      samples,
      note: `p50 ${alone.toFixed(1)} ms alone, ${beside.toFixed(1)} ms beside it, n=${times}`,
    });
  } finally {
    await release();
  }
}

interface Project {
  id: string;
  /** Path of the tenant's repository on the server. */
  path: string;
}

let named = 0;

async function makeProject({ api }: Tenant, more: object = {}): Promise<Project> {
  const made = await api.json<{ id: string; git_url: string | null }>("POST", "/api/v1/projects", 201, {
    name: `fair-${(named += 1)}`,
    auto_deploy: false,
    ...more,
  });
  return { id: made.id, path: made.git_url === null ? "" : new URL(made.git_url).pathname };
}

const basic = ({ token }: Tenant): string => `Basic ${Buffer.from(`bench:${token}`).toString("base64")}`;

/** Starts pushes that send their bodies just above the minimum rate. */
async function git(scene: Scene): Promise<void> {
  const { server, busy, other } = scene;
  const [theirs, own] = [await makeProject(busy), await makeProject(other)];
  const { host } = new URL(server.baseUrl);
  const read = async () => {
    const headers = { authorization: basic(other) };
    const url = `http://${host}${own.path}/info/refs?service=git-upload-pack`;
    const response = await fetch(url, { headers });
    await response.arrayBuffer();
    if (response.status !== 200) throw new Error(`git: ${response.status}`);
  };
  await compare(scene, "git: references of a repository", {
    ask: read,
    hold: async () => {
      const agent = new Agent({ maxSockets: Infinity });
      const headers = {
        authorization: basic(busy),
        "content-type": "application/x-git-receive-pack-request",
        "content-length": 1_000_000,
      };
      const pushes: ClientRequest[] = [];
      for (let n = 0; n < 29; n += 1) {
        const url = `http://${host}${theirs.path}/git-receive-pack`;
        const push = request(url, { method: "POST", agent, headers }).on("error", () => {});
        push.on("response", (response) => response.resume().on("error", () => {}));
        // The bytes are the header of a 65,520-byte line, and a part of the line. Git waits for the rest.
        push.write(Buffer.concat([Buffer.from("fff0"), Buffer.alloc(17 * 1024)]));
        pushes.push(push);
      }
      const trickle = setInterval(() => pushes.forEach((push) => push.write(Buffer.alloc(1_200))), 1_000);
      return () => {
        clearInterval(trickle);
        for (const push of pushes) push.destroy();
      };
    },
  });
}

/** Starts analyses of a repository whose server does not respond. */
async function analyses(scene: Scene): Promise<void> {
  const { server, busy, other } = scene;
  const held: Socket[] = [];
  const silent = createServer((socket) => held.push(socket.on("error", () => {})));
  await once(silent.listen(0, "127.0.0.1"), "listening");
  const { port } = silent.address() as AddressInfo;
  const directory = mkdtempSync(join(tmpdir(), "kontor-fair-"));
  try {
    const theirs = await makeProject(busy, { repo_url: `https://127.0.0.1:${port}/a/b` });
    const own = await makeProject(other);
    writeFileSync(join(directory, "package.json"), '{"dependencies":{"express":"4"}}');
    const identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
    const remote = `${server.baseUrl.replace("://", `://bench:${other.token}@`)}${own.path}`;
    for (const args of [
      ["init", "--quiet", "--initial-branch=main"],
      ["add", "."],
      [...identity, "commit", "--quiet", "--message=first"],
      ["push", "--quiet", remote, "main"],
    ])
      await runProgram(["git", ...args], { cwd: directory, timeoutMs: 60_000 });
    const analyze = ({ api }: Tenant, { id }: Project) => api.send("POST", `/api/v1/projects/${id}/analyze`);
    await compare(scene, "analyze: a repository", {
      ask: async () => {
        const { status, bytes } = await analyze(other, own);
        if (status !== 200) throw new Error(`analyze: ${status} ${bytes.toString()}`);
      },
      hold: async () => {
        const all = Array.from({ length: 11 }, () => analyze(busy, theirs).catch(() => {}));
        return async () => {
          const hangUp = setInterval(() => held.splice(0).forEach((socket) => socket.destroy()), 50);
          await Promise.all(all);
          clearInterval(hangUp);
        };
      },
    });
  } finally {
    silent.close();
    held.forEach((socket) => socket.destroy());
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Makes an agent with a slow model, and an agent whose model responds at once. */
async function withAgents(
  scene: Scene,
  work: (
    invoke: (who: Tenant, waitSeconds: number) => Promise<{ run_id: string; status: string }>,
  ) => Promise<void>,
): Promise<void> {
  const [fast, slow] = [await startScriptedModel(), await startScriptedModel()];
  slow.answer = () => ({ text: Array.from({ length: 120 }, () => "x"), delayMs: 1_000 });
  const agent = `clerk-${(named += 1)}`;
  try {
    for (const [who, { url }] of [
      [scene.busy, slow],
      [scene.other, fast],
    ] as const) {
      const credential = await who.api.json<{ id: string }>("POST", "/v1/model-credentials", 201, {
        provider: "openai_compatible",
        name: agent,
        api_key: "none",
        base_url: url,
      });
      const model = { provider: "openai_compatible", id: "scripted", credential_id: credential.id };
      await who.api.json("POST", "/v1/agents", 201, { name: agent, config: { model } });
    }
    await work(async ({ api }, waitSeconds) => {
      const body = Buffer.from(JSON.stringify({ input: "Go.", wait_s: waitSeconds }));
      const { bytes } = await api.send("POST", `/v1/agents/${agent}/invoke`, body);
      return JSON.parse(bytes.toString()) as { run_id: string; status: string };
    });
  } finally {
    fast.close();
    slow.close();
  }
}

/** Opens the maximum of event streams that a workspace may have. */
async function streams(scene: Scene): Promise<void> {
  const { server, busy, other } = scene;
  await withAgents(scene, async (invoke) => {
    const { run_id } = await invoke(busy, 0);
    await compare(scene, "streams: list of projects", {
      ask: () => other.api.json("GET", "/api/v1/projects", 200),
      hold: async () => {
        const agent = new Agent({ maxSockets: Infinity });
        const url = `${server.baseUrl}/v1/agents/runs/${run_id}/stream`;
        const headers = { authorization: `Bearer ${busy.token}` };
        const readers = Array.from({ length: 500 }, () =>
          request(url, { agent, headers }, (response) => response.resume().on("error", () => {}))
            .on("error", () => {})
            .end(),
        );
        return () => readers.forEach((reader) => reader.destroy());
      },
    });
    await busy.api.send("POST", `/v1/agents/runs/${run_id}/cancel`);
  });
}

async function runs(scene: Scene): Promise<void> {
  const { busy, other } = scene;
  await withAgents(scene, (invoke) =>
    compare(scene, "runs: invoke an agent", {
      ask: async () => {
        const { status } = await invoke(other, 30);
        if (status !== "completed") throw new Error(`a run is ${status}`);
      },
      hold: async () => {
        const begun = await Promise.all(Array.from({ length: 200 }, () => invoke(busy, 0)));
        return () =>
          Promise.all(
            begun.flatMap(({ run_id }) =>
              run_id ? [busy.api.send("POST", `/v1/agents/runs/${run_id}/cancel`)] : [],
            ),
          );
      },
    }),
  );
}

/** Makes ten webhooks with a receiver that does not respond, each with events of many sandboxes. */
async function webhooks(scene: Scene): Promise<void> {
  const { db, busy, other } = scene;
  const [silent, prompt] = [await startReceiver(), await startReceiver()];
  silent.answer = () => {};
  let arrived: () => void = () => {};
  prompt.answer = (_, response) => {
    response.writeHead(204).end();
    arrived();
  };
  const tell = ({ workspaceId }: Tenant, sandboxId: string) =>
    db.transaction().execute((tx) =>
      recordEvent(tx, {
        workspaceId,
        event: "sandbox.resumed",
        sandboxId,
        at: new Date(),
        outcome: "ok",
        summary: "Resumed.",
        detail: {},
        actor: systemActor("a benchmark"),
      }),
    );
  try {
    await other.api.json("POST", "/v1/sandboxes/webhooks", 201, { url: prompt.url });
    for (let n = 0; n < 10; n += 1)
      await busy.api.json("POST", "/v1/sandboxes/webhooks", 201, { url: silent.url });
    await compare(scene, "webhooks: event to delivery", {
      ask: async () => {
        const delivery = new Promise<void>((resolve) => (arrived = resolve));
        await tell(other, "sbx_other");
        await Promise.race([delivery, sleep(waitMs).then(() => Promise.reject(new Error("no delivery")))]);
      },
      hold: async () => {
        for (let n = 0; n < 100; n += 1) await tell(busy, `sbx_busy${n}`);
        return () => db.deleteFrom("sandbox_webhook_deliveries").execute();
      },
    });
  } finally {
    await silent.close();
    await prompt.close();
  }
}

/** Starts twenty template builds of half a minute each. */
async function builds(scene: Scene): Promise<void> {
  const { busy, other } = scene;
  const create = ({ api }: Tenant, command: string) =>
    api.json<{ id: string }>("POST", "/v1/templates", 201, {
      name: `fair-${(named += 1)}`,
      base_template: "debian-12",
      recipe: [command],
    });
  const remove = ({ api }: Tenant, { id }: { id: string }) => api.send("DELETE", `/v1/templates/${id}`);
  await compare(scene, "builds: a template of one step", {
    times: buildRounds,
    ask: async () => {
      const made = await create(other, "true");
      const path = `/v1/templates/${made.id}`;
      for (const until = performance.now() + waitMs; ; await sleep(50)) {
        const { status } = await other.api.json<{ status: string }>("GET", path, 200);
        if (status === "ready") break;
        if (status === "failed" || performance.now() > until) throw new Error(`the template is ${status}`);
      }
      await remove(other, made);
    },
    hold: async () => {
      const made: { id: string }[] = [];
      for (let n = 0; n < 20; n += 1) made.push(await create(busy, "sleep 30"));
      return async () => {
        for (const one of made) await remove(busy, one);
      };
    },
  });
}
