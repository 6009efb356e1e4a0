/**
 * The time from `git push` to a response at the project's address, for a static page and an Express app, at the first
 * push and at the next. The benchmark also measures a rollback to the previous image, and the effect of repeated
 * deployments on visitors.
 *
 * The server is separate, and its builds use the host's package sources.
 */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { type Server, startServer } from "../../e2e/support/server.ts";
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { percentile, measureTime } from "../support/measure.ts";
import { Project } from "../support/project.ts";

export const name = "deploy";

const visitsPerSecond = 300;
const deploys = 20;
const rollbacks = 5;

export async function run(context: BenchContext): Promise<void> {
  context.progress("starting a server");
  const server = await startServer({ KONTOR_POOL_SIZE: "0" }, ["debian-12", "node-22", "static-site"]);
  const home = mkdtempSync(join(tmpdir(), "kontor-bench-deploy-"));
  try {
    const site = await Project.create(server, home, "page", "static-html");
    const app = await Project.create(server, home, "shop", "express");
    // The first project makes the bases on the host, so that no measured push waits for them.
    context.progress("the bases, once");
    const other = await Project.create(server, home, "bases", "procfile");
    await other.push();

    context.progress("a static page", 0.1);
    const bar = (seconds: number) => ({ atMost: seconds * 1000 });
    report(context, "push → live, a static page, its first time", (await measureTime(() => site.push())).ms);
    const again = (await measureTime(() => site.push("index.html"))).ms;
    report(context, "push → live, a static page, again", again, bar(5));
    context.progress("an Express app", 0.2);
    report(
      context,
      "push → live, an Express app, its first time",
      (await measureTime(() => app.push())).ms,
      bar(45),
    );
    report(
      context,
      "push → live, an Express app, again",
      (await measureTime(() => app.push("server.js"))).ms,
      bar(12),
    );

    context.progress("rollbacks", 0.4);
    const back: number[] = [];
    for (let n = 0; n < 7; n += 1) back.push((await measureTime(() => app.rollback())).ms);
    context.report({
      what: "rollback → live, p50",
      value: percentile(back, 50),
      unit: "ms",
      samples: back,
      bar: { atMost: 3000 },
      note: `n=${back.length}`,
    });
    await underVisitors(context, app);
    await whileBuilding(context, server, home);
  } finally {
    rmSync(home, { recursive: true, force: true });
    await server.destroy();
  }
}

function report(context: BenchContext, what: string, ms: number, bar?: { atMost: number }): void {
  context.report({ what, value: ms, unit: "ms", note: "n=1", ...(bar ? { bar } : {}) });
}

/**
 * Measures visitors' requests during deployments. Half of the requests use kept connections, half use new connections.
 */
async function underVisitors(context: BenchContext, app: Project): Promise<void> {
  const kept = new http.Agent({ keepAlive: true, maxSockets: 64 });
  const failures = new Map<string, number>();
  const under: Promise<void>[] = [];
  let isOver = false;
  const visitors = (async () => {
    const begun = performance.now();
    for (let n = 0; !isOver; n += 1) {
      const wait = begun + (n * 1000) / visitsPerSecond - performance.now();
      if (wait > 0) await sleep(wait);
      const visit = app.visit(n % 2 === 0 ? kept : false).catch((error: Error) => {
        failures.set(error.message, (failures.get(error.message) ?? 0) + 1);
      });
      under.push(visit);
    }
  })();
  for (let n = 0; n < deploys; n += 1) {
    context.progress(`under visitors: deployment ${n + 1}`, 0.5 + n / 60);
    await app.push("server.js");
  }
  for (let n = 0; n < rollbacks; n += 1) await app.rollback();
  isOver = true;
  await visitors;
  await Promise.all(under);
  kept.destroy();
  const failed = [...failures.values()].reduce((sum, count) => sum + count, 0);
  context.report({
    what: `${deploys} deployments and ${rollbacks} rollbacks under ${visitsPerSecond} requests a second: failed`,
    value: failed,
    unit: "requests",
    bar: { atMost: 0 },
    note: `n=${under.length}${failed > 0 ? `: ${[...failures].map(([why, count]) => `${why} × ${count}`).join(", ")}` : ""}`,
  });
}

/** Measures the latency of API calls during a build that uses all CPU time available to it. */
async function whileBuilding(context: BenchContext, server: Server, home: string): Promise<void> {
  context.progress("the API beside a build", 0.9);
  const burning = await Project.create(server, home, "burning", "procfile");
  writeFileSync(
    join(burning.directory, "Dockerfile"),
    "FROM debian:12-slim\nRUN for n in 1 2 3 4; do (while :; do :; done) & done; sleep 25; kill %1 %2 %3 %4; exit 1\n",
  );
  const push = burning.push().catch(() => {});
  await sleep(8_000);
  const api = new Api(server);
  const samples: number[] = [];
  const begun = performance.now();
  while (performance.now() - begun < 15_000) {
    samples.push((await measureTime(() => api.json("GET", `/api/v1/projects/${burning.id}`, 200))).ms);
    await sleep(20);
  }
  await push;
  context.report({
    what: "GET of a project while a build burns all cores, p99",
    value: percentile(samples, 99),
    unit: "ms",
    bar: { atMost: 250 },
    note: `p50 ${percentile(samples, 50).toFixed(1)}; n=${samples.length}`,
  });
}
