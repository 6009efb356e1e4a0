/**
 * Latency of a function by its public name: warm, frozen, on disk, and as a cold start. For comparison: a Node server
 * that always runs, and `podman run` and `podman start` with a request.
 *
 * Then fifty sleeping functions, and a thousand concurrent requests to one of them. Each function of a row gets one
 * request, because one function alone could be unusually fast or slow.
 */
import http from "node:http";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { testImage } from "@kontor/runtime/rootfs/testing/image.ts";
import type { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { percentile } from "../support/measure.ts";
import { withOwnServer } from "../support/own-server.ts";
import { Podman } from "../rivals/podman.ts";

export const name = "functions";

const functions = 10;
const sleepers = 50;
const warmRequests = 500;
const idleSeconds = 10;
const patienceMs = 10 * 60_000;
const handler = `let n = 0; export default () => new Response("hello " + (n += 1));`;
const inPodman = `node -e 'const s = require("http").createServer((q, a) => a.end("hello")).listen(0, async () => {
  console.log(await (await fetch("http://127.0.0.1:" + s.address().port)).text()); process.exit(); })'`;

interface DeployedFunction {
  id: string;
  url: string;
}

type Stage = "frozen" | "asleep" | "none";

export async function run(context: BenchContext): Promise<void> {
  await beside(context);
  await withOwnServer(context, { KONTOR_FUNCTION_FROZEN_MINUTES: "1000" }, async (server, api) => {
    const to = { port: server.description.port, api };
    const made = await deployFunctions(context, api, functions);
    await row(context, "warm", 5, await warm(to, made[0]!));
    await waitForStage(server, made, "frozen");
    await row(context, "held still", 40, await each(to, made));
    // The functions get other variables than they started with, so they stop as soon as they are idle.
    for (const { id } of made)
      await api.json("PATCH", `/api/v1/functions/${id}`, 200, { env_vars: { ANEW: "1" } });
    await waitForStage(server, made, "none");
    await row(context, "from nothing", 900, await each(to, made));
  });
  await withOwnServer(context, { KONTOR_FUNCTION_FROZEN_MINUTES: "0" }, async (server, api) => {
    const to = { port: server.description.port, api };
    const before = usedBy(server.pid);
    const made = await deployFunctions(context, api, sleepers);
    await waitForStage(server, made, "asleep");
    const [after, cpu] = [usedBy(server.pid), cpuOf(server.pid)];
    await sleep(10_000);
    const bytes = (after - before) / sleepers / 1024 ** 2;
    context.report({
      what: `${sleepers} functions asleep, memory of each`,
      value: bytes,
      unit: "MB",
      bar: { atMost: 5 },
    });
    context.report({
      what: `${sleepers} functions asleep, CPU of the server`,
      value: ((cpuOf(server.pid) - cpu) / 10) * 100,
      unit: "% of a core",
    });
    await row(context, "on disk", 500, await each(to, made.slice(0, functions)));
    await waitForStage(server, made, "asleep");
    await herd(context, to, made.at(-1)!);
  });
}

async function row(context: BenchContext, what: string, atMost: number, samples: number[]): Promise<void> {
  const value = percentile(samples, 50);
  const note = `p99 ${percentile(samples, 99).toFixed(1)} ms; n=${samples.length}`;
  context.report({
    what: `a request to a function ${what}, p50`,
    value,
    unit: "ms",
    samples,
    bar: { atMost },
    note,
  });
}

/** Measures the rivals: a Node server in this process, and podman if it is installed. */
async function beside(context: BenchContext): Promise<void> {
  const server = http.createServer((_request, response) => response.end("hello"));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  const agent = new http.Agent({ keepAlive: true });
  const taken: number[] = [];
  for (let n = 0; n < warmRequests; n += 1) taken.push((await ask({ port, host: "localhost", agent })).ms);
  agent.destroy();
  server.close();
  context.report({
    what: "the same of Node itself, p50",
    value: percentile(taken, 50),
    unit: "ms",
    samples: taken,
  });
  const { rootfs } = await testImage("node-22");
  const podman = await Podman.open(rootfs);
  if (podman === undefined) return;
  try {
    const run: number[] = [];
    for (let n = 0; n < 5; n += 1) run.push(await podman.runAndExec("none", inPodman));
    const started = await podman.startAgain("none", inPodman, 5);
    for (const [what, samples] of [
      ["podman run and a request, p50", run],
      ["podman start and a request, p50", started],
    ] as const)
      context.report({ what, value: percentile(samples, 50), unit: "ms", samples });
  } finally {
    await podman.close();
  }
}

async function deployFunctions(context: BenchContext, api: Api, count: number): Promise<DeployedFunction[]> {
  const made: DeployedFunction[] = [];
  for (let n = 0; n < count; n += 1) {
    context.progress("deploying functions", n / count);
    const one = await api.json<DeployedFunction>("POST", "/api/v1/functions", 201, {
      name: `bench-function-${n}`,
      runtime: "nodejs",
      handler_code: handler,
      idle_timeout_seconds: idleSeconds,
    });
    await api.json("POST", `/api/v1/functions/${one.id}/deploy`, 200, {});
    made.push(one);
  }
  return made;
}

/** Waits until all instances are in the given stage, or have stopped. */
async function waitForStage(
  server: { sql(text: string, values: unknown[]): Promise<unknown>; dataDir: string },
  made: readonly DeployedFunction[],
  stage: Stage,
): Promise<void> {
  const deadline = performance.now() + patienceMs;
  const count = stage === "none" ? 0 : made.length;
  const test = `do $$ begin
    if (select count(*) from function_instances) <> ${count}
      or exists (select from function_instances where state <> '${stage}') then raise exception 'not yet'; end if;
  end $$`;
  for (;;) {
    const isThere = await server.sql(test, []).then(
      () => true,
      () => false,
    );
    if (isThere) return;
    if (performance.now() > deadline) throw new Error(`${made.length} functions are not ${stage} in time`);
    await sleep(1_000);
  }
}

async function warm(to: { port: number }, { url }: DeployedFunction): Promise<number[]> {
  const agent = new http.Agent({ keepAlive: true });
  const host = new URL(url).host;
  await ask({ ...to, host, agent });
  const taken: number[] = [];
  for (let n = 0; n < warmRequests; n += 1) taken.push((await ask({ ...to, host, agent })).ms);
  agent.destroy();
  return taken;
}

async function each(to: { port: number }, made: readonly DeployedFunction[]): Promise<number[]> {
  const taken: number[] = [];
  for (const { url } of made) taken.push((await ask({ ...to, host: new URL(url).host })).ms);
  return taken;
}

/** Sends a thousand requests, fifty at once, to a function on disk. */
async function herd(
  context: BenchContext,
  to: { port: number; api: Api },
  { id, url }: DeployedFunction,
): Promise<void> {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 50 });
  const host = new URL(url).host;
  const begun = performance.now();
  const answers = await Promise.allSettled(Array.from({ length: 1000 }, () => ask({ ...to, host, agent })));
  const seconds = (performance.now() - begun) / 1000;
  agent.destroy();
  const failed = answers.filter(({ status }) => status === "rejected").length;
  // The server writes its counts of requests within a second.
  await sleep(2_000);
  const metrics = await to.api.json<{ cold_starts: number }>(
    "GET",
    `/api/v1/functions/${id}/metrics?period=5m`,
    200,
  );
  const note = `50 at once to one on disk; ${(1000 / seconds).toFixed(0)} req/s; cold starts: ${metrics.cold_starts}`;
  context.report({
    what: "1,000 requests: failed",
    value: failed,
    unit: "requests",
    bar: { atMost: 0 },
    note,
  });
}

/** Requests a function. Throws on a status other than 200: a fast failure must not count as a fast response. */
function ask({
  port,
  host,
  agent,
}: {
  port: number;
  host: string;
  agent?: http.Agent;
}): Promise<{ ms: number }> {
  const begun = performance.now();
  return new Promise((resolve, reject) => {
    const to = { host: "127.0.0.1", port, headers: { host }, agent: agent ?? false } as const;
    const asked = http.get(to, (response) => {
      if (response.statusCode !== 200) reject(new Error(`${host} answered ${response.statusCode}`));
      response.on("data", () => {});
      response.once("end", () => resolve({ ms: performance.now() - begun }));
    });
    asked.once("error", reject);
  });
}

/** Returns the resident bytes of the server. Sleeping functions have no machines that would count. */
function usedBy(pid: number | undefined): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024;
}

/** Returns the CPU time of a process since its start, in seconds. */
function cpuOf(pid: number | undefined): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]!.split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}
