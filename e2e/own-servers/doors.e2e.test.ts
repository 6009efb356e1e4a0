/** Replaces the server under load, as `./kontor up` starts it. The listening sockets stay open. */
import { existsSync, readFileSync } from "node:fs";
import http from "node:http";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { run } from "@kontor/runtime/exec.ts";
import { eventually } from "../support/answers.ts";
import { type Server, startServer } from "../support/server.ts";

let server: Server;

beforeAll(async () => {
  server = await startServer({}, ["debian-12"], { isKept: true });
});
afterAll(() => server?.destroy());

/**
 * Sends requests continuously, on new and on kept connections, until `work` ends. Returns the errors of the requests.
 */
async function whileVisited(work: () => Promise<void>): Promise<{ answered: number; failures: string[] }> {
  const kept = new http.Agent({ keepAlive: true });
  const failures: string[] = [];
  let answered = 0;
  let isOver = false;
  const visitor = async (agent: http.Agent | false) => {
    while (!isOver) {
      await visit(agent).then(
        () => (answered += 1),
        (error: NodeJS.ErrnoException) => failures.push(`${agent === kept ? "kept" : "new"}: ${error.code}`),
      );
      await sleep(10);
    }
  };
  const visitors = [kept, kept, kept, false as const, false as const, false as const].map(visitor);
  try {
    await work();
  } finally {
    isOver = true;
    await Promise.all(visitors);
    kept.destroy();
  }
  return { answered, failures };
}

function visit(agent: http.Agent | false): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = http.get(`${server.baseUrl}/healthz`, { agent, timeout: 40_000 }, (response) => {
      response.resume().once("error", reject);
      response.once("end", resolve);
    });
    request.once("timeout", () => request.destroy(new Error("no answer")));
    request.once("error", reject);
  });
}

/** Waits until another process than `pid` serves. */
function waitForReplacement(pid: number | undefined): Promise<unknown> {
  const isReady = async () =>
    server.pid !== undefined &&
    server.pid !== pid &&
    (await server.api("GET", "/readyz", { token: null })).status === 200;
  return eventually(isReady, (ready) => ready, 60_000);
}

function keeperOf(pid: number | undefined): number {
  return Number(/^PPid:\s+(\d+)$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
}

function isThere(pid: number): boolean {
  return existsSync(`/proc/${pid}/fd/0`);
}

test("new connections wait during a restart, and none is refused", { timeout: 120_000 }, async () => {
  const { answered, failures } = await whileVisited(async () => {
    const { pid } = server;
    process.kill(keeperOf(pid), "SIGHUP");
    await waitForReplacement(pid);
  });
  expect(failures).toEqual([]);
  expect(answered).toBeGreaterThan(20);
});

test("a killed server is restarted, and only requests in flight fail", { timeout: 120_000 }, async () => {
  const { failures } = await whileVisited(async () => {
    const { pid } = server;
    process.kill(pid ?? 0, "SIGKILL");
    await waitForReplacement(pid);
  });
  expect(failures.filter((failure) => !failure.endsWith(": ECONNRESET"))).toEqual([]);
  expect(failures.length).toBeLessThanOrEqual(6);
});

test(
  "a restart applies the settings of its shell, and refuses another port",
  { timeout: 120_000 },
  async () => {
    const restart = (env: Record<string, string>) =>
      run(
        [
          process.execPath,
          join(import.meta.dirname, "../../cli/src/main.ts"),
          "restart",
          "--data",
          server.dataDir,
        ],
        {
          cwd: server.dataDir,
          env: { PATH: process.env["PATH"] ?? "/usr/bin:/bin", ...env },
          okCodes: [0, 1],
          timeoutMs: 100_000,
        },
      );
    const { pid } = server;
    const refused = await restart({ KONTOR_PORT: "1" });
    expect([refused.code, refused.stderr]).toEqual([
      1,
      expect.stringContaining("KONTOR_PORT is 1, and the server"),
    ]);
    expect(server.pid).toBe(pid);
    const create = () => server.api("POST", "/v1/sandboxes", { body: { template: "debian-12" } });
    const settings = {
      KONTOR_MAX_SANDBOXES_ENTERPRISE: "0",
      KONTOR_URL: server.baseUrl,
      KONTOR_TOKEN: "svc_x",
    };
    const done = await restart(settings);
    expect([done.code, done.stderr]).toEqual([0, expect.any(String)]);
    expect(server.pid).not.toBe(pid);
    expect((await create()).body).toMatchObject({ code: "plan_limit" });
    // The shim also starts the next server with these settings.
    process.kill(server.pid ?? 0, "SIGKILL");
    await waitForReplacement(server.pid);
    expect((await create()).body).toMatchObject({ code: "plan_limit" });
  },
);

test("does not restart a server that the operator stopped", async () => {
  const keeper = keeperOf(server.pid);
  await server.stop();
  await eventually(
    async () => isThere(keeper),
    (there) => !there,
  );
  await expect(visit(false)).rejects.toMatchObject({ code: "ECONNREFUSED" });
  await server.start();
});
