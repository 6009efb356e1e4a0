/**
 * Overhead of the ingress for a request to an app, compared with nginx in front of the same server on the same machine.
 * Measured at a fixed rate of 500 requests a second, and at the maximum rate of one process.
 *
 * The two proxies alternate. nginx comes from Debian's package; without it the benchmark measures Kontor's ingress
 * alone.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { freePort } from "../../cli/src/serve/port.ts";
import type { BenchContext } from "../support/contract.ts";
import { percentile } from "../support/measure.ts";

export const name = "proxy";

const perSecond = 500;
const rounds = 6;
const perRound = 1_000;
const connections = 16;
const atFullSpeed = 10_000;
const request = Buffer.from(
  "GET /x HTTP/1.1\r\nHost: shop.apps.test\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n\r\n",
);
const nginx = "/usr/sbin/nginx";
const servers = join(import.meta.dirname, "../rivals/proxy-servers.ts");

export async function run(context: BenchContext): Promise<void> {
  const directory = mkdtempSync(join(tmpdir(), "kontor-bench-proxy-"));
  const started: ChildProcess[] = [];
  const own = async (...args: string[]): Promise<number> => {
    const child = spawn(process.execPath, [servers, ...args], { stdio: ["ignore", "pipe", "inherit"] });
    started.push(child);
    const [line] = (await once(child.stdout, "data")) as [Buffer];
    return Number(line);
  };
  try {
    const upstream = await own("upstream");
    const ways: Record<string, number> = {
      direct: upstream,
      ingress: await own("ingress", String(upstream)),
    };
    if (existsSync(nginx)) {
      ways["nginx"] = await freePort();
      const file = join(directory, "nginx.conf");
      writeFileSync(file, nginxSettings(directory, ways["nginx"], upstream));
      started.push(spawn(nginx, ["-c", file, "-p", directory], { stdio: "ignore" }));
      await untilItListens(ways["nginx"]);
    }
    await addedLatency(context, ways);
    await throughput(context, ways);
  } finally {
    for (const child of started) {
      child.kill("SIGTERM");
      if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
    }
    rmSync(directory, { recursive: true, force: true });
  }
}

async function addedLatency(context: BenchContext, ways: Record<string, number>): Promise<void> {
  const taken = new Map<string, number[]>();
  for (let round = -1; round < rounds; round += 1) {
    context.progress(`${perSecond} requests a second`, (round + 1) / (2 * rounds));
    for (const [way, port] of Object.entries(ways)) {
      const samples = await atRate(port);
      // The first round is a warm-up.
      if (round >= 0) taken.set(way, [...(taken.get(way) ?? []), ...samples]);
    }
  }
  const direct = taken.get("direct")!;
  for (const [way, samples] of taken) {
    if (way === "direct") continue;
    for (const [percent, atMost] of [
      [50, 0.5],
      [99, 3],
    ] as const) {
      const [through, straight] = [percentile(samples, percent), percentile(direct, percent)];
      context.report({
        what: `added by ${way === "ingress" ? "the way in" : way}, p${percent}`,
        value: through - straight,
        unit: "ms",
        ...(way === "ingress" ? { bar: { atMost } } : {}),
        note: `${through.toFixed(2)} through it, ${straight.toFixed(2)} straight; n=${samples.length}, ${perSecond}/s, plain HTTP, 1 KB`,
      });
    }
  }
}

async function throughput(context: BenchContext, ways: Record<string, number>): Promise<void> {
  const best = new Map<string, number>();
  for (let round = 0; round < rounds; round += 1) {
    context.progress("as fast as it goes", 0.5 + round / (2 * rounds));
    for (const [way, port] of Object.entries(ways)) {
      const each = atFullSpeed / connections;
      const begun = performance.now();
      await Promise.all(
        Array.from({ length: connections }, async () => {
          const line = await Line.open(port);
          for (let n = 0; n < each; n += 1) await line.ask();
          line.close();
        }),
      );
      const rate = atFullSpeed / ((performance.now() - begun) / 1000);
      best.set(way, Math.max(best.get(way) ?? 0, rate));
    }
  }
  const rival = best.get("nginx");
  const [ours, straight] = [best.get("ingress")!, best.get("direct")!];
  const note = `best of ${rounds}, ${connections} connections, client on the same cores; straight ${Math.round(straight)}`;
  context.report({ what: "throughput of the way in", value: ours, unit: "req/s", note });
  if (rival === undefined) return;
  context.report({ what: "throughput of nginx, one worker", value: rival, unit: "req/s", note });
  context.report({ what: "throughput, of nginx's", value: (ours / rival) * 100, unit: "%", note });
}

/** Returns each request's latency in ms, counted from its due time. It includes the wait for a free connection. */
async function atRate(port: number): Promise<number[]> {
  const lines = await Promise.all(Array.from({ length: connections }, () => Line.open(port)));
  const start = performance.now();
  const all: Promise<number>[] = [];
  for (let n = 0; n < perRound; n += 1) {
    const wait = start + (n * 1000) / perSecond - performance.now();
    if (wait > 0) await sleep(wait);
    const begun = performance.now();
    all.push(lines[n % connections]!.ask().then(() => performance.now() - begun));
  }
  const samples = await Promise.all(all);
  for (const line of lines) line.close();
  return samples;
}

/**
 * A keep-alive connection with one request in flight, on a bare socket, so that the client is not the bottleneck.
 */
class Line {
  readonly #socket: net.Socket;
  #before: Promise<void> = Promise.resolve();
  #answered: () => void = () => {};
  #failed: (error: Error) => void = () => {};
  #got = "";

  private constructor(socket: net.Socket) {
    this.#socket = socket;
    socket.on("data", (piece) => this.#take(piece));
    socket.on("error", (error) => this.#failed(error));
    socket.on("close", () => this.#failed(new Error("the connection ended")));
  }

  static async open(port: number): Promise<Line> {
    const socket = net.connect({ port, host: "127.0.0.1", noDelay: true });
    await once(socket, "connect");
    return new Line(socket);
  }

  ask(): Promise<void> {
    const answer = this.#before.then(
      () =>
        new Promise<void>((resolve, reject) => {
          [this.#answered, this.#failed] = [resolve, reject];
          this.#socket.write(request);
        }),
    );
    this.#before = answer.catch(() => {});
    return answer;
  }

  close(): void {
    this.#failed = () => {};
    this.#socket.destroy();
  }

  #take(piece: Buffer): void {
    this.#got += piece.toString("latin1");
    const head = this.#got.indexOf("\r\n\r\n");
    if (head < 0 || this.#got.length < head + 4 + 1024) return;
    const isFine = this.#got.startsWith("HTTP/1.1 200");
    this.#got = "";
    if (isFine) this.#answered();
    else this.#failed(new Error("not 200"));
  }
}

/** Configured like Kontor's ingress: one process, keep-alive connections, the same headers. */
function nginxSettings(directory: string, port: number, upstream: number): string {
  const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    .map((kind) => `${kind}_temp_path ${directory}/${kind};`)
    .join(" ");
  return `worker_processes 1; daemon off; pid ${directory}/pid; error_log ${directory}/error.log;
events { worker_connections 1024; }
http { access_log off; ${temporary} keepalive_requests 1000000;
  upstream app { server 127.0.0.1:${upstream}; keepalive 64; }
  server { listen 127.0.0.1:${port}; location / { proxy_pass http://app; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_set_header Host $host; proxy_set_header X-Request-Id $request_id;
    proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto $scheme; } } }`;
}

async function untilItListens(port: number): Promise<void> {
  for (let left = 100; ; left -= 1) {
    try {
      return (await Line.open(port)).close();
    } catch (error) {
      if (left === 0) throw error;
      await sleep(50);
    }
  }
}
