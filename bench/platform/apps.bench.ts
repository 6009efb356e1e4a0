/**
 * A request to a sleeping app: the time from a visitor's request to its response, through the proxy. A frozen app
 * continues its process. A stopped app is a cold start of Node in a native machine.
 *
 * Each request has its own connection and runs alone. The same request to the running app is measured beside it.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { type Server, startServer } from "../../e2e/support/server.ts";
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { percentile, measureTime } from "../support/measure.ts";
import { Project } from "../support/project.ts";

export const name = "apps";

const rounds = 30;
const stoppedRounds = 15;

export async function run(context: BenchContext): Promise<void> {
  const frozen = await measure(context, { KONTOR_APP_FROZEN_MINUTES: "15" }, rounds);
  // The first check, which happens once a second, stops the app.
  const stopped = await measure(context, { KONTOR_APP_FROZEN_MINUTES: "0" }, stoppedRounds);
  report(context, "visit to a Node app that is awake, p50", frozen.awake, 50);
  report(context, "wake by a visit, a Node app that is frozen, p50", frozen.woken, 50, 40);
  report(context, "wake by a visit, a Node app that is frozen, p99", frozen.woken, 99);
  report(context, "wake by a visit, a Node app that is stopped, p50", stopped.woken, 50, 500);
  report(context, "wake by a visit, a Node app that is stopped, p99", stopped.woken, 99);
}

async function measure(
  context: BenchContext,
  env: Record<string, string>,
  times: number,
): Promise<{ awake: number[]; woken: number[] }> {
  context.progress("starting a server");
  const settings = { KONTOR_POOL_SIZE: "0", KONTOR_POOL_MAX: "0", KONTOR_RATE_LIMITS: "off", ...env };
  const server = await startServer(settings, ["node-22"]);
  const home = mkdtempSync(join(tmpdir(), "kontor-bench-apps-"));
  try {
    const project = await Project.create(server, home, "sleeper", "procfile");
    await project.push();
    await waitForIdleMachines(server);
    const isStopped = env["KONTOR_APP_FROZEN_MINUTES"] === "0";
    const awake: number[] = [];
    const woken: number[] = [];
    // The first two rounds fill caches.
    for (let round = -2; round < times; round += 1) {
      context.progress(
        `${isStopped ? "stopped" : "frozen"}: ${round} of ${times}`,
        Math.max(0, round) / times,
      );
      const { ms: again } = await measureTime(() => project.visit(false));
      await putToSleep(server, project, isStopped);
      const { ms: first } = await measureTime(() => project.visit(false));
      if (round < 0) continue;
      awake.push(again);
      woken.push(first);
    }
    return { awake, woken };
  } finally {
    rmSync(home, { recursive: true, force: true });
    await server.destroy();
  }
}

async function putToSleep(server: Server, { id }: Project, isStopped: boolean): Promise<void> {
  await new Api(server).json("POST", `/api/v1/projects/${id}/sleep`, 200);
  const deadline = Date.now() + 30_000;
  const held = "select 1 from app_instances i join machines m on m.owner_id = i.id where i.state = 'asleep'";
  while (isStopped && (await server.sql(held, [])).length > 0) {
    if (Date.now() > deadline) throw new Error("the app that sleeps keeps its machine");
    await sleep(100);
  }
}

function report(
  context: BenchContext,
  what: string,
  samples: number[],
  percent: number,
  atMost?: number,
): void {
  context.report({
    what,
    value: percentile(samples, percent),
    unit: "ms",
    samples,
    ...(atMost === undefined ? {} : { bar: { atMost } }),
    note: `n=${samples.length}, one at a time`,
  });
}
