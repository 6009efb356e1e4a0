/**
 * Transfers 512 MiB into a sandbox and out again by pre-signed URLs, and measures the server's memory meanwhile. The
 * client sends the same random megabyte repeatedly and discards the download, so that it is not the bottleneck.
 */
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { type IncomingMessage, request } from "node:http";
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { percentile, measureTime } from "../support/measure.ts";

export const name = "transfer";

const MiB = 1024 ** 2;
const sizeBytes = 512 * MiB;
const warmUpBytes = 64 * MiB;
const rounds = 5;
const sampleEveryMs = 20;
const path = "/workspace/transfer";
const piece = randomBytes(MiB);

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  const { id } = await api.json<{ id: string }>("POST", "/v1/sandboxes", 201, {
    template: "debian-12",
    size: "medium",
  });
  await waitForIdleMachines(context);
  const sign = (kind: string) =>
    api.json<{ url: string }>("POST", `/v1/sandboxes/${id}/files/presign-${kind}`, 200, { path });
  const [to, from] = [await sign("upload"), await sign("download")];
  // The first transfer of a server compiles code and grows buffers.
  await upload(context, to.url, warmUpBytes);
  await download(context, from.url);
  const uploads: number[] = [];
  const downloads: number[] = [];
  const before = residentBytes(context.serverPid);
  const memory = watchMemory(context.serverPid);
  for (let round = 0; round < rounds; round += 1) {
    context.progress(`${round} of ${rounds}`, round / rounds);
    const up = await measureTime(() => upload(context, to.url, sizeBytes));
    uploads.push(sizeBytes / 1e6 / (up.ms / 1000));
    const down = await measureTime(() => download(context, from.url));
    if (down.result !== sizeBytes) throw new Error(`${down.result} bytes came back`);
    downloads.push(sizeBytes / 1e6 / (down.ms / 1000));
  }
  const most = memory.stop();
  await api.remove(id);
  const note = `n=${rounds}, 512 MiB, size medium`;
  const bar = { atLeast: 150 };
  const figure = (what: string, samples: number[]) =>
    context.report({ what, value: percentile(samples, 50), unit: "MB/s", samples, bar, note });
  figure("upload by signed URL, p50", uploads);
  figure("download by signed URL, p50", downloads);
  context.report({
    what: "the server's memory at its most, over before",
    value: (most - before) / 1e6,
    unit: "MB",
    bar: { atMost: 50 },
    note: `resident, looked at every ${sampleEveryMs} ms, after a first transfer of 64 MiB`,
  });
}

/**
 * Sends a request to the URL's host name on the plain listener: the name identifies the sandbox, and the connection
 * stays on loopback.
 */
function open(context: BenchContext, url: string, method: string, headers: Record<string, string>) {
  const { hostname, pathname, search } = new URL(url);
  return request(context.baseUrl + pathname + search, {
    method,
    headers: { host: hostname, ...headers },
    agent: false,
  });
}

async function upload(context: BenchContext, url: string, bytes: number): Promise<void> {
  const call = open(context, url, "PUT", { "content-length": String(bytes) });
  const answered = once(call, "response") as Promise<[IncomingMessage]>;
  for (let sent = 0; sent < bytes; sent += piece.length) {
    if (!call.write(piece)) await once(call, "drain");
  }
  call.end();
  const [response] = await answered;
  response.resume();
  if (response.statusCode !== 200) throw new Error(`upload: ${response.statusCode}`);
}

async function download(context: BenchContext, url: string): Promise<number> {
  const call = open(context, url, "GET", {});
  call.end();
  const [response] = (await once(call, "response")) as [IncomingMessage];
  if (response.statusCode !== 200) throw new Error(`download: ${response.statusCode}`);
  let bytes = 0;
  response.on("data", (part: Buffer) => (bytes += part.length));
  await once(response, "end");
  return bytes;
}

function watchMemory(pid: number): { stop: () => number } {
  let most = 0;
  const timer = setInterval(() => (most = Math.max(most, residentBytes(pid))), sampleEveryMs);
  return {
    stop: () => {
      clearInterval(timer);
      return most;
    },
  };
}

function residentBytes(pid: number): number {
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]) * 1024;
}
