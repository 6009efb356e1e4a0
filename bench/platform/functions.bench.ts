/**
 * What a function costs who asks it, by its public name: warm, held still, on disk, and from nothing; beside a Node
 * server that runs all the time, and `podman run` and `podman start` with a request. Then fifty that sleep, and a
 * thousand requests at once to one of them. The functions of a row are asked once each: an average of one function
 * would be of its luck.
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

interface Made {
  id: string;
  url: string;
}

type Stage = "frozen" | "asleep" | "none";

export async function run(context: BenchContext): Promise<void> {
  await beside(context);
  await withOwnServer(context, { KONTOR_FUNCTION_FROZEN_MINUTES: "1000" }, async (server, api) => {
    const to = { port: server.description.port, api };
    const made = await deployed(context, api, functions);
    await row(context, "warm", 5, await warm(to, made[0]!));
    await rested(server, made, "frozen");
    await row(context, "held still", 40, await each(to, made));
    // Begun with other variables than they have now, they end as soon as they have nothing to do.
    for (const { id } of made)
      await api.json("PATCH", `/api/v1/functions/${id}`, 200, { env_vars: { ANEW: "1" } });
    await rested(server, made, "none");
    await row(context, "from nothing", 900, await each(to, made));
  });
  await withOwnServer(context, { KONTOR_FUNCTION_FROZEN_MINUTES: "0" }, async (server, api) => {
    const to = { port: server.description.port, api };
    const before = usedBy(server.pid);
    const made = await deployed(context, api, sleepers);
    await rested(server, made, "asleep");
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
    await rested(server, made, "asleep");
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

/** A Node server of this process' own, and podman where there is one. */
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

async function deployed(context: BenchContext, api: Api, count: number): Promise<Made[]> {
  const made: Made[] = [];
  for (let n = 0; n < count; n += 1) {
    context.progress("deploying functions", n / count);
    const one = await api.json<Made>("POST", "/api/v1/functions", 201, {
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

/** Once all instances are at that stage, or gone. */
async function rested(
  server: { sql(text: string, values: unknown[]): Promise<unknown>; dataDir: string },
  made: readonly Made[],
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

async function warm(to: { port: number }, { url }: Made): Promise<number[]> {
  const agent = new http.Agent({ keepAlive: true });
  const host = new URL(url).host;
  await ask({ ...to, host, agent });
  const taken: number[] = [];
  for (let n = 0; n < warmRequests; n += 1) taken.push((await ask({ ...to, host, agent })).ms);
  agent.destroy();
  return taken;
}

async function each(to: { port: number }, made: readonly Made[]): Promise<number[]> {
  const taken: number[] = [];
  for (const { url } of made) taken.push((await ask({ ...to, host: new URL(url).host })).ms);
  return taken;
}

/** A thousand, fifty at once, to one that is on disk. */
async function herd(context: BenchContext, to: { port: number; api: Api }, { id, url }: Made): Promise<void> {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 50 });
  const host = new URL(url).host;
  const begun = performance.now();
  const answers = await Promise.allSettled(Array.from({ length: 1000 }, () => ask({ ...to, host, agent })));
  const seconds = (performance.now() - begun) / 1000;
  agent.destroy();
  const failed = answers.filter(({ status }) => status === "rejected").length;
  // What was counted is written within a second.
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

/** A status that is not 200 fails: what failed quickly must not count as fast. */
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

/** Resident bytes of the server; machines of functions that sleep are not there to be counted. */
function usedBy(pid: number | undefined): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024;
}

/** Seconds so far. */
function cpuOf(pid: number | undefined): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]!.split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}
