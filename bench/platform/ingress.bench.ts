/**
 * Overhead of the ingress. A request and a WebSocket message reach a server in a sandbox by its public name over TLS,
 * and by its machine's address on this host. Each path gets 200 requests or messages a second.
 *
 * The difference is the ingress, the guest's tunnel and TLS together.
 *
 * The two paths alternate, so that other load on the host affects both equally.
 */
import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import net from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import tls from "node:tls";
import { slotNames } from "@kontor/runtime/network/addresses.ts";
import { instanceOf, machinesOf } from "../../e2e/support/host-state.ts";
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { percentile } from "../support/measure.ts";

export const name = "ingress";

const perSecond = 200;
const rounds = 6;
const perRound = 500;
const port = 3000;
/** Number of connections that a browser opens. A request's wait for a free connection is part of the measurement. */
const maxSockets = 6;
const bar = { p50: 1, p99: 5 };

/**
 * Code of a server that responds with 1 KB on kept connections, and echoes all bytes after an upgrade. Perl is part of
 * every Debian.
 */
const site = `use IO::Socket::INET; $SIG{CHLD} = "IGNORE"; my $body = "a" x 1024;
my $l = IO::Socket::INET->new(LocalPort => ${port}, Listen => 64, ReuseAddr => 1) or die;
while (1) { my $s = $l->accept or next; next if fork; setsockopt $s, 6, 1, 1; my $in = "";
  while (sysread $s, $in, 65536, length $in) { while ($in =~ s/^(.*?)\\r\\n\\r\\n//s) {
    if ($1 =~ /^upgrade:/mi) { syswrite $s, "HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n";
      while (sysread $s, $in, 65536) { syswrite $s, $in } exit }
    syswrite $s, "HTTP/1.1 200 OK\\r\\nContent-Length: 1024\\r\\n\\r\\n$body" } } exit }`;

interface Way {
  get: () => Promise<void>;
  socket: () => Promise<net.Socket>;
}

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  const { id } = await api.json<{ id: string }>("POST", "/v1/sandboxes", 201, {
    template: "debian-12",
    network: "open",
    timeout_seconds: 1800,
  });
  const content = Buffer.from(site).toString("base64");
  await api.json("POST", `/v1/sandboxes/${id}/files`, 200, { path: "/workspace/site.pl", content });
  await api.json("POST", `/v1/sandboxes/${id}/commands`, 201, { command: "exec perl /workspace/site.pl" });
  await waitForIdleMachines(context);
  const ways = {
    direct: direct(machineAddress(context.dataDirectory, id)),
    ingress: byName(context.dataDirectory, id),
  };
  await untilItAnswers(ways.ingress);

  await compare(context, ways, "a request for 1 KB", (way) => atRate(() => way.get()));
  const sockets = { direct: await ways.direct.socket(), ingress: await ways.ingress.socket() };
  const echoes = { direct: echoing(sockets.direct), ingress: echoing(sockets.ingress) };
  await compare(context, echoes, "a WebSocket's message, there and back", atRate);
  for (const socket of Object.values(sockets)) socket.destroy();
  await api.remove(id);
}

async function compare<T>(
  context: BenchContext,
  ways: { direct: T; ingress: T },
  what: string,
  measure: (way: T) => Promise<number[]>,
): Promise<void> {
  const taken = { direct: [] as number[], ingress: [] as number[] };
  await measure(ways.direct);
  await measure(ways.ingress);
  for (let round = 0; round < rounds; round += 1) {
    context.progress(what, round / rounds);
    taken.direct.push(...(await measure(ways.direct)));
    taken.ingress.push(...(await measure(ways.ingress)));
  }
  for (const percent of [50, 99] as const) {
    const [through, straight] = [percentile(taken.ingress, percent), percentile(taken.direct, percent)];
    context.report({
      what: `${what}: added by the way in, p${percent}`,
      value: through - straight,
      unit: "ms",
      bar: { atMost: bar[`p${percent}`] },
      note: `${through.toFixed(2)} by name over TLS, ${straight.toFixed(2)} straight; n=${taken.ingress.length}, ${perSecond}/s`,
    });
  }
}

/** Starts a request every 5 ms without waiting for responses. Returns the milliseconds of each request. */
async function atRate(work: () => Promise<void>): Promise<number[]> {
  const start = performance.now();
  const all: Promise<number>[] = [];
  for (let n = 0; n < perRound; n += 1) {
    const at = start + (n * 1000) / perSecond;
    const wait = at - performance.now();
    if (wait > 0) await sleep(wait);
    const begun = performance.now();
    all.push(work().then(() => performance.now() - begun));
  }
  return Promise.all(all);
}

function direct(host: string): Way {
  const agent = new http.Agent({ keepAlive: true, maxSockets });
  return {
    get: () => got((done) => http.get({ agent, host, port, path: "/" }, done)),
    socket: () => openWebSocket(net.connect({ host, port, noDelay: true }), "x"),
  };
}

function byName(dataDirectory: string, id: string): Way {
  const { tls_port } = JSON.parse(readFileSync(join(dataDirectory, "server.json"), "utf8")) as {
    tls_port: number;
  };
  const host = `${port}-${id.slice("sbx_".length)}.sbx.localhost`;
  const to = {
    host: "127.0.0.1",
    port: tls_port,
    servername: host,
    ca: readFileSync(join(dataDirectory, "ca.crt")),
  };
  const agent = new https.Agent({ keepAlive: true, maxSockets });
  return {
    get: () => got((done) => https.get({ ...to, agent, path: "/", headers: { host } }, done)),
    socket: () => openWebSocket(tls.connect(to).setNoDelay(true), host),
  };
}

function got(ask: (done: (response: http.IncomingMessage) => void) => http.ClientRequest): Promise<void> {
  return new Promise((resolve, reject) => {
    ask((response) => {
      if (response.statusCode !== 200) reject(new Error(`answered ${response.statusCode}`));
      response.on("data", () => {});
      response.on("end", resolve);
    }).on("error", reject);
  });
}

function openWebSocket(socket: net.Socket, host: string): Promise<net.Socket> {
  return new Promise((resolve, reject) => {
    socket.on("error", reject);
    socket.write(`GET /ws HTTP/1.1\r\nHost: ${host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`);
    socket.once("data", (head) => {
      if (head.toString().startsWith("HTTP/1.1 101")) resolve(socket);
      else reject(new Error(head.toString()));
    });
  });
}

const message = Buffer.from("a frame of some 32 bytes, or so.");

/**
 * Returns a function that sends a message and waits for its echo. Messages stay in order: the first response belongs to
 * the first message.
 */
function echoing(socket: net.Socket): () => Promise<void> {
  const waiting: (() => void)[] = [];
  let bytes = 0;
  socket.on("data", (piece) => {
    for (bytes += piece.length; bytes >= message.length; bytes -= message.length) waiting.shift()?.();
  });
  return () =>
    new Promise((resolve) => {
      waiting.push(resolve);
      socket.write(message);
    });
}

function machineAddress(dataDirectory: string, id: string): string {
  const instance = instanceOf(dataDirectory);
  if (instance === undefined) throw new Error("the server has no instance");
  const record = machinesOf(dataDirectory).find(({ spec }) => spec.hostname === id.replace("_", "-"));
  if (!record) throw new Error("the sandbox has no machine");
  return slotNames(instance, record.slot).address;
}

async function untilItAnswers(way: Way): Promise<void> {
  for (let left = 100; ; left -= 1) {
    try {
      return await way.get();
    } catch (error) {
      if (left === 0) throw error;
      await sleep(100);
    }
  }
}
