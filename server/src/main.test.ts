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
  /** Exit code; rejects for an end by a signal it did not handle. */
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

/** The real program, with the runtime that isolates nothing, on a free port. */
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

/** Answers its address once it says that it is ready. */
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

/** Connects as a client that trusts the installation's own authority. */
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

test("a first start leaves the operator's way in, for its own account alone, and no later start changes it", async () => {
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

test("a second server on the same data directory is refused and says where the first one is", async () => {
  const first = start();
  const address = await ready(first);
  const second = start();
  expect(await second.ended).toBe(1);
  expect(second.output()).toContain(
    `a server already serves ${dataDir}: ${address} (process ${first.child.pid})`,
  );
  expect((await fetch(`${address}/healthz`)).status).toBe(200);
});

test("SIGTERM ends the server in order: exit code 0, no server.json, and PostgreSQL runs on", async () => {
  const server = start();
  await ready(server);
  server.child.kill("SIGTERM");
  expect(await server.ended).toBe(0);
  expect(existsSync(join(dataDir, "server.json"))).toBe(false);
  expect(exists(findPostmaster(join(dataDir, "postgres/data"))!.pid)).toBe(true);
});

/** Half a request, whose rest the server has to wait for; the answer as it comes. */
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
  // Answered on another connection later than this one's bytes arrived.
  await fetch(`${address}/healthz`);
  return { socket, answer: () => answer };
}

async function draining(server: Server): Promise<void> {
  server.child.kill("SIGTERM");
  await vi.waitFor(() => expect(server.output()).toContain("draining"), 30_000);
}

test("a request that runs when the server begins to drain is answered", async () => {
  const server = start({ KONTOR_SHUTDOWN_GRACE_SECONDS: "600" });
  const { socket, answer } = await beginRequest(await ready(server));
  await draining(server);
  socket.end("}");
  await vi.waitFor(() => expect(answer()).toMatch(/^HTTP\/1\.1 4\d\d /), 30_000);
  expect(await server.ended).toBe(0);
});

test("a second signal ends a server at once that waits for a request", async () => {
  const server = start({ KONTOR_SHUTDOWN_GRACE_SECONDS: "600" });
  await beginRequest(await ready(server));
  await draining(server);
  server.child.kill("SIGTERM");
  expect(await server.ended).toBe(1);
});

test("records that the new server of an upgrade works before its background work begins", async () => {
  const to = join(import.meta.dirname, "../..");
  mkdirSync(upgradeFiles(dataDir).directory, { recursive: true });
  writeUpgrade(dataDir, { format: 1, from: "/code/old", to, started_at: new Date().toISOString() });
  const startedAt = new Date();
  await ready(start());
  const since = workStartedAt(dataDir)!;
  const { connection } = await ensureEmbedded(dataDir);
  // The images of templates are the first background work that leaves its time in the database.
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

test("a setting that does not fit ends the server before it touches anything, and is named", async () => {
  const server = start({ KONTOR_DATA_DIR: join(dataDir, "untouched"), KONTOR_POOL_SIZE: "many" });
  expect(await server.ended).toBe(1);
  expect(server.output()).toContain('KONTOR_POOL_SIZE: expected a whole number from 0 to 100, got "many"');
  expect(existsSync(join(dataDir, "untouched"))).toBe(false);
});

test("a server with the wrong secrets key refuses to start", async () => {
  const server = start({ KONTOR_SECRETS_KEY: "00".repeat(32) });
  expect(await server.ended).toBe(1);
  expect(server.output()).toContain("KONTOR_SECRETS_KEY is not the key this database was set up with");
});
