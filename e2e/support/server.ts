/**
 * A real server for the tests: its own process, data directory, database, network and machines, on a free port. A test
 * has only a description; the address is in `<data>/server.json`, which the process writes. So any test file can use
 * the run's shared server, kill it, and start it again.
 */
import { spawn } from "node:child_process";
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { TEST_CACHE } from "@kontor/runtime/rootfs/testing/image.ts";
import { openDatabase } from "../../server/src/db/db.ts";
import type { Database } from "../../server/src/schema.ts";
import { ensureEmbedded } from "../../server/src/db/embedded/ensure-embedded.ts";
import { type Call, type Reply, request } from "./api.ts";
import { removeHostTraces } from "./clean.ts";
import { linkImages } from "./images.ts";

/** Complete description of a server; the global set-up passes it to the test files as JSON. */
export interface ServerDescription {
  dataDir: string;
  port: number;
  env: Record<string, string>;
  /** True if the server runs under the shim, which keeps its sockets open, as with `./kontor up`. */
  isKept?: boolean;
  /** Directory of the server's code, or a link to the directory; this checkout if absent. */
  code?: string;
}

type StartOptions = Pick<ServerDescription, "isKept" | "code"> & {
  /** Port of the server's plain HTTP listener; a free port if absent. */
  port?: number;
  /** Puts the templates' images into the data directory, for code with other recipes. */
  link?: typeof linkImages;
};

interface ServerFile {
  pid: number;
  port: number;
  base_url: string;
}

const checkout = join(import.meta.dirname, "../..");
const main = "server/src/main.ts";
const shim = "runtime/shim/build/kontor-shim";
const parent = process.env["KONTOR_E2E_DATA"] ?? "/var/tmp";
/** Timeout of a start. A first start creates a database, and makes images if the host has no cache. */
const readyTimeoutMs = 120_000;
const endTimeoutMs = 60_000;
/** Timeout of a server's end at a named point: a test's request may be a build on a busy host. */
const deathTimeoutMs = 120_000;

/** Starts a server with these templates; `destroy` removes the server and all its data. */
export async function startServer(
  env: Record<string, string> = {},
  templates: readonly string[] = ["debian-12"],
  { link = linkImages, ...options }: StartOptions = {},
): Promise<Server> {
  mkdirSync(parent, { recursive: true });
  const dataDir = mkdtempSync(join(parent, "kontor-e2e-"));
  // mkdtemp creates a directory of mode 0700, which PostgreSQL's account cannot enter.
  chmodSync(dataDir, 0o711);
  const settings = {
    KONTOR_PREPARE_TEMPLATES: templates.join(","),
    KONTOR_TLS_PORT: String(await freePort()),
    ...env,
  };
  const server = new Server({ dataDir, env: settings, ...options, port: options.port ?? (await freePort()) });
  try {
    await link(dataDir, templates);
    if (options.port !== undefined) await requireFree(options.port);
    await server.start();
  } catch (error) {
    await server.destroy();
    throw error;
  }
  return server;
}

export class Server {
  readonly description: ServerDescription;

  constructor(description: ServerDescription) {
    this.description = description;
  }

  get dataDir(): string {
    return this.description.dataDir;
  }

  get baseUrl(): string {
    return `http://127.0.0.1:${this.description.port}`;
  }

  /** The operator's token: full access, team plan, enterprise tier. */
  get token(): string {
    return (JSON.parse(readFileSync(join(this.dataDir, "operator.json"), "utf8")) as { token: string }).token;
  }

  /** Pid of the server's process while it exists. */
  get pid(): number | undefined {
    const file = join(this.dataDir, "server.json");
    if (!existsSync(file)) return undefined;
    const { pid } = JSON.parse(readFileSync(file, "utf8")) as ServerFile;
    return isServer(pid) ? pid : undefined;
  }

  /** Resident memory of the server's process, in bytes. */
  get residentBytes(): number {
    const status = readFileSync(`/proc/${this.pid}/status`, "utf8");
    return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024;
  }

  get log(): string {
    return readFileSync(join(this.dataDir, "test.log"), "utf8");
  }

  /** Resolves when the server is ready. Does nothing if the server runs already. */
  async start(): Promise<void> {
    if (this.pid !== undefined) return;
    const log = openSync(join(this.dataDir, "test.log"), "a");
    const [program, ...args] = this.#argv();
    const child = spawn(program, args, {
      detached: true,
      stdio: ["ignore", log, log],
      env: this.#environment(),
    });
    closeSync(log);
    child.unref();
    const deadline = Date.now() + readyTimeoutMs;
    while (!(await this.#isReady())) {
      const ended = child.exitCode ?? child.signalCode;
      if (ended !== null || Date.now() > deadline) {
        throw new Error(
          `the server ${ended === null ? "is not ready" : `ended with ${ended}`}:\n${this.log.slice(-4000)}`,
        );
      }
      await sleep(50);
    }
  }

  /** Stops like `./kontor down`: the server releases its machines and exits. */
  async stop(): Promise<void> {
    await this.#end("SIGTERM");
  }

  /** Kills the server like the kernel or a power cut. */
  async kill9(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** Kills the server at a named point of `act`, or of its own later work. The next server has started on return. */
  async dieAt(point: string, act: () => Promise<unknown>): Promise<void> {
    writeFileSync(this.#killFile, point);
    try {
      await act();
      const deadline = Date.now() + deathTimeoutMs;
      while (this.pid !== undefined) {
        if (Date.now() > deadline) throw new Error(`the server did not come to ${point}`);
        await sleep(20);
      }
    } finally {
      rmSync(this.#killFile);
    }
    await this.start();
  }

  get #killFile(): string {
    return join(this.dataDir, "kill-at");
  }

  /** Ends the server and removes all its traces from this host, also after a failed start. */
  async destroy(): Promise<void> {
    await this.stop();
    await removeHostTraces(this.dataDir);
    rmSync(this.dataDir, { recursive: true, force: true });
  }

  /** Calls the API, with the operator's token by default; `token: null` sends none. */
  api(method: string, path: string, call: Call = {}): Promise<Reply> {
    return request(this.baseUrl, method, path, { token: this.token, ...call });
  }

  /** Reads or writes the database, for settings of the operator without an API call. */
  async sql(text: string, values: unknown[]): Promise<Record<string, unknown>[]> {
    const { connection } = await ensureEmbedded(this.dataDir);
    const database = openDatabase<Database>(connection, { maxConnections: 1, onError: () => {} });
    try {
      return (await database.pool.query(text, values)).rows as Record<string, unknown>[];
    } finally {
      await database.close();
    }
  }

  #argv(): [string, ...string[]] {
    const { port, env, code = checkout } = this.description;
    const server: [string, string] = [process.execPath, join(code, main)];
    if (!this.description.isKept) return server;
    const doors = [port, env["KONTOR_TLS_PORT"]].flatMap((door) => ["--listen", `127.0.0.1:${door}`]);
    return [join(code, shim), "keep", ...doors, "--", ...server];
  }

  #environment(): Record<string, string> {
    return {
      PATH: process.env["PATH"] ?? "/usr/sbin:/usr/bin:/sbin:/bin",
      HOME: process.env["HOME"] ?? "/root",
      KONTOR_DATA_DIR: this.dataDir,
      KONTOR_PORT: String(this.description.port),
      KONTOR_TLS_PORT: "0",
      KONTOR_PREPARE_TEMPLATES: "debian-12",
      KONTOR_KILL_FILE: this.#killFile,
      // Tests poll with the operator's only token, from several files a minute.
      KONTOR_RATE_LIMIT_PLATFORM_TEAM: "100000",
      KONTOR_RATE_LIMIT_SANDBOX_ENTERPRISE: "100000",
      // All servers of the tests share the compile cache of `./kontor up`.
      NODE_COMPILE_CACHE: join(TEST_CACHE, "compile-cache"),
      ...this.description.env,
    };
  }

  async #isReady(): Promise<boolean> {
    const answer = await fetch(`${this.baseUrl}/readyz`).catch(() => undefined);
    await answer?.body?.cancel();
    return answer?.status === 200 && this.pid !== undefined;
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const { pid } = this;
    if (pid === undefined) return;
    process.kill(pid, signal);
    const deadline = Date.now() + endTimeoutMs;
    while (isServer(pid)) {
      if (Date.now() > deadline) {
        process.kill(pid, "SIGKILL");
        throw new Error(`the server did not end after ${signal}:\n${this.log.slice(-4000)}`);
      }
      await sleep(20);
    }
  }
}

/**
 * Returns whether the process is a server. Another process may have the same pid by now; a zombie has no command line.
 */
function isServer(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(main);
  } catch {
    return false;
  }
}

async function requireFree(port: number): Promise<void> {
  const probe = createServer();
  await new Promise<void>((resolve, reject) => {
    probe.once("error", () =>
      reject(new Error(`Port ${port} of 127.0.0.1 is in use; stop the server on it first.`)),
    );
    probe.listen(port, "127.0.0.1", resolve);
  });
  await new Promise((resolve) => probe.close(resolve));
}

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer().on("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address() as { port: number };
      probe.close(() => resolve(port));
    });
  });
}
