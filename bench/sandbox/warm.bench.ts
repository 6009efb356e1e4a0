/**
 * Sandboxes from a warm pool, one at a time, on an idle server of the default configuration. Measures the time from
 * `POST /v1/sandboxes` to the result of the first exec.
 *
 * The rival runs between the rounds, so that both run under the same load of the host.
 */
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { rootfsOf } from "../support/images.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { mean, percentile, measureTime } from "../support/measure.ts";
import { Podman, type PodmanNetwork } from "../rivals/podman.ts";

export const name = "warm";

const rounds = 100;
/** Number of rounds between two rounds of the rival. */
const rivalEvery = 5;
const command = "echo ready";

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  const ours: number[] = [];
  const creates: number[] = [];
  const theirs: Record<PodmanNetwork, number[]> = { bridge: [], none: [] };
  const podman = await Podman.open(rootfsOf(context.dataDirectory, "debian-12"));
  try {
    await warmUp(context, api, podman);
    for (let round = 0; round < rounds; round += 1) {
      context.progress(`${round} of ${rounds}`, round / rounds);
      await waitForIdleMachines(context);
      const { total, create } = await createAndExec(api);
      ours.push(total);
      creates.push(create);
      if (podman && round % rivalEvery === 0) {
        await waitForIdleMachines(context);
        for (const network of ["bridge", "none"] as const) {
          theirs[network].push(await podman.runAndExec(network, command));
        }
      }
    }
  } finally {
    await podman?.close();
  }
  report(context, ours, creates);
  if (podman) compare(context, ours, theirs);
}

/** Runs a first round, which fills caches: compiled code, query plans, page cache. */
async function warmUp(context: BenchContext, api: Api, podman: Podman | undefined): Promise<void> {
  for (let round = 0; round < 3; round += 1) {
    await waitForIdleMachines(context);
    await createAndExec(api);
  }
  for (const network of ["bridge", "none"] as const) await podman?.runAndExec(network, command);
}

async function createAndExec(api: Api): Promise<{ total: number; create: number }> {
  const start = performance.now();
  const sandbox = await api.create();
  const create = performance.now() - start;
  const { ms } = await measureTime(() => api.exec(sandbox.id, { command }));
  await api.remove(sandbox.id);
  return { total: create + ms, create };
}

function report(context: BenchContext, ours: number[], creates: number[]): void {
  const what = "create → first exec result, warm";
  const note = `n=${ours.length}, one at a time, default configuration`;
  context.report({
    what: `${what}, p50`,
    value: percentile(ours, 50),
    unit: "ms",
    samples: ours,
    bar: { atMost: 60 },
    note,
  });
  context.report({
    what: `${what}, p99`,
    value: percentile(ours, 99),
    unit: "ms",
    bar: { atMost: 200 },
    note,
  });
  context.report({
    what: "create alone, p50",
    value: percentile(creates, 50),
    unit: "ms",
    samples: creates,
    note: `mean ${mean(creates).toFixed(1)} ms`,
  });
}

function compare(context: BenchContext, ours: number[], theirs: Record<PodmanNetwork, number[]>): void {
  const median = percentile(ours, 50);
  const notes = {
    bridge: "podman's default network; a sandbox has one as well",
    none: "the rival without any network, for comparison only",
  };
  for (const network of ["bridge", "none"] as const) {
    const samples = theirs[network];
    const rival = percentile(samples, 50);
    const what = `podman run --runtime runsc + exec, network ${network}, p50`;
    context.report({
      what,
      value: rival,
      unit: "ms",
      samples,
      note: `n=${samples.length}, interleaved; ${notes[network]}`,
    });
    context.report({
      what: `ours over podman's (${network})`,
      value: (median / rival) * 100,
      unit: "%",
      ...(network === "bridge" ? { bar: { atMost: 10 } } : {}),
    });
  }
}
