import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import https from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect, type Socket } from "node:net";
import { afterAll, afterEach, beforeAll, expect, test, vi } from "vitest";
import { programEnv } from "../test/harness.ts";
import { ensureEmbedded, stopEmbedded } from "./db/embedded/ensure-embedded.ts";
import { exists, findPostmaster } from "./db/embedded/postmaster.ts";
import { endUpgrade, upgradeFiles, workStartedAt, writeUpgrade } from "./db/upgrade.ts";
import { withClient } from "./db/with-client.ts";

interface Server {
  child: ChildProcess;
  output: () => string;
  /** Exit code of the process. Rejects if the process was killed by a signal that it did not handle. */
  ended: Promise<number | null>;
}

let dataDir: string;
const children: ChildProcess[] = [];

beforeAll(() => {
  dataDir = mkdtempSync(join(tmpdir(), "kontor-main-"));
  chmodSync(dataDir, 0o711);
});
afterEach(async () => {
  for (const child of children.splice(0)) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    child.kill("SIGKILL");
    await once(child, "exit");
  }
});
afterAll(async () => {
  await stopEmbedded(dataDir);
  rmSync(dataDir, { recursive: true, force: true });
});

/** Starts the real program on a free port, with the fake runtime. */
function start(env: Record<string, string> = {}): Server {
  const child = spawn(process.execPath, [join(import.meta.dirname, "main.ts")], {
    stdio: ["ignore", "pipe", "pipe"],
    env: {
      ...programEnv(),
      KONTOR_DATA_DIR: dataDir,
      KONTOR_PORT: "0",
      KONTOR_TLS_PORT: "0",
      KONTOR_RUNTIME: "fake",
      KONTOR_ALLOW_FAKE_RUNTIME: "1",
      ...env,
    },
  });
  children.push(child);
  let output = "";
  child.stdout.on("data", (text: Buffer) => (output += text.toString()));
  child.stderr.on("data", (text: Buffer) => (output += text.toString()));
  return { child, output: () => output, ended: once(child, "close").then(([code]) => code as number | null) };
}

/** Returns the server's address once the server logs that it is ready. */
async function ready(server: Server): Promise<string> {
  return vi.waitFor(
    async () => {
      if (server.child.exitCode !== null) throw new Error(`it ended: ${server.output()}`);
      const { pid, base_url } = readJson<{ pid: number; base_url: string }>("server.json");
      expect(pid).toBe(server.child.pid);
      expect((await fetch(`${base_url}/readyz`)).status).toBe(200);
      return base_url;
    },
    { timeout: 60_000, interval: 50 },
  );
}

/** Requests `/healthz` as a client that trusts the installation's own authority. */
function healthByTls(ca: string): Promise<number | undefined> {
  const { tls_port: port } = readJson<{ tls_port: number }>("server.json");
  return new Promise((resolve, reject) => {
    const options = { host: "localhost", port, path: "/healthz", ca: readFileSync(ca), agent: false };
    https.get(options, (response) => resolve(response.resume().statusCode)).on("error", reject);
  });
}

function readJson<T>(name: string): T {
  return JSON.parse(readFileSync(join(dataDir, name), "utf8")) as T;
}

test("writes operator.json at the first start for the server's account only, and never changes it at a later start", async () => {
  const first = start();
  const address = await ready(first);
  const operator = readJson<{ token: string; email: string; password: string; ca_file: string }>(
    "operator.json",
  );
  expect(statSync(join(dataDir, "operator.json")).mode & 0o777).toBe(0o600);
  expect(operator.ca_file).toBe(join(dataDir, "ca.crt"));
  expect(await healthByTls(operator.ca_file)).toBe(200);
  const whoami = await fetch(`${address}/api/v1/api-tokens`, {
    headers: { authorization: `Bearer ${operator.token}` },
  });
  expect(whoami.status).toBe(200);
  expect(first.output()).not.toContain(operator.token);
  expect(first.output()).not.toContain(operator.password);

  first.child.kill("SIGKILL");
  await first.ended;
  const second = start();
  await ready(second);
  expect(readJson("operator.json")).toEqual(operator);
});

test("refuses a second server on the same data directory, and names the address of the first", async () => {
  const first = start();
  const address = await ready(first);
  const second = start();
  expect(await second.ended).toBe(1);
  expect(second.output()).toContain(
    `a server already serves ${dataDir}: ${address} (process ${first.child.pid})`,
  );
  expect((await fetch(`${address}/healthz`)).status).toBe(200);
});

test("stops in order on SIGTERM: exit code 0, no server.json, and PostgreSQL keeps running", async () => {
  const server = start();
  await ready(server);
  server.child.kill("SIGTERM");
  expect(await server.ended).toBe(0);
  expect(existsSync(join(dataDir, "server.json"))).toBe(false);
  expect(exists(findPostmaster(join(dataDir, "postgres/data"))!.pid)).toBe(true);
});

/** Sends half a request, so that the server waits for the rest. `answer` returns the response received so far. */
async function beginRequest(address: string): Promise<{ socket: Socket; answer: () => string }> {
  const { port, hostname } = new URL(address);
  const socket = connect(Number(port), hostname);
  let answer = "";
  socket.on("data", (text: Buffer) => (answer += text.toString()));
  socket.on("error", () => {});
  await once(socket, "connect");
  const head = [
    "POST /api/v1/session HTTP/1.1",
    "Host: x",
    "Content-Type: application/json",
    "Content-Length: 2",
  ];
  socket.write(`${head.join("\r\n")}\r\n\r\n{`);
  // This response proves that the bytes on the other connection have arrived, because they were sent first.
  await fetch(`${address}/healthz`);
  return { socket, answer: () => answer };
}

async function draining(server: Server): Promise<void> {
  server.child.kill("SIGTERM");
  await vi.waitFor(() => expect(server.output()).toContain("draining"), 30_000);
}

test("responds to a request that is in flight when the server begins to drain", async () => {
  const server = start({ KONTOR_SHUTDOWN_GRACE_SECONDS: "600" });
  const { socket, answer } = await beginRequest(await ready(server));
  await draining(server);
  socket.end("}");
  await vi.waitFor(() => expect(answer()).toMatch(/^HTTP\/1\.1 4\d\d /), 30_000);
  expect(await server.ended).toBe(0);
});

test("exits at once on a second signal while a request is in flight", async () => {
  const server = start({ KONTOR_SHUTDOWN_GRACE_SECONDS: "600" });
  await beginRequest(await ready(server));
  await draining(server);
  server.child.kill("SIGTERM");
  expect(await server.ended).toBe(1);
});

test("records the time at which the new server of an upgrade begins to work, before its background work", async () => {
  const to = join(import.meta.dirname, "../..");
  mkdirSync(upgradeFiles(dataDir).directory, { recursive: true });
  writeUpgrade(dataDir, { format: 1, from: "/code/old", to, started_at: new Date().toISOString() });
  const startedAt = new Date();
  await ready(start());
  const since = workStartedAt(dataDir)!;
  const { connection } = await ensureEmbedded(dataDir);
  // The images of templates are the first background work that records its time in the database.
  const madeAt = async (): Promise<Date[]> =>
    withClient(connection, async (client) => {
      const { rows } = await client.query<{ updated_at: Date }>(
        "select updated_at from host_images where updated_at >= $1 order by 1",
        [startedAt],
      );
      return rows.map((row) => row.updated_at);
    });
  await expect.poll(async () => (await madeAt()).length).toBeGreaterThan(0);
  expect((await madeAt())[0]!.getTime()).toBeGreaterThanOrEqual(since.getTime());
  endUpgrade(dataDir);
});

test("exits on an invalid setting before it changes anything, and names the setting", async () => {
  const server = start({ KONTOR_DATA_DIR: join(dataDir, "untouched"), KONTOR_POOL_SIZE: "many" });
  expect(await server.ended).toBe(1);
  expect(server.output()).toContain('KONTOR_POOL_SIZE: expected a whole number from 0 to 100, got "many"');
  expect(existsSync(join(dataDir, "untouched"))).toBe(false);
});

test("refuses to start with a wrong secrets key", async () => {
  const server = start({ KONTOR_SECRETS_KEY: "00".repeat(32) });
  expect(await server.ended).toBe(1);
  expect(server.output()).toContain("KONTOR_SECRETS_KEY is not the key this database was set up with");
});
