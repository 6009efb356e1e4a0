/**
 * Code cells over HTTP, on a server with a warm machine of the interpreter's template and a warm kernel. Measures the
 * round trip of the smallest cell, and the time from the create of a sandbox to the result of its first cell.
 */
import { startServer } from "../../e2e/support/server.ts";
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { type ServerAddress, waitForIdleMachines } from "../support/machines.ts";
import { percentile, measureTime } from "../support/measure.ts";

export const name = "code";

const cells = 300;
// Number of rounds. Each round waits for a warm machine, which takes seconds.
const rounds = 15;
const template = "code-interpreter";

export async function run(context: BenchContext): Promise<void> {
  context.progress("starting a server with the template");
  const env = { KONTOR_POOL_TEMPLATES: template, KONTOR_POOL_SIZE: "1", KONTOR_POOL_MAX: "1" };
  // The image comes from the cache of the tests, which builds it once.
  const server = await startServer(env, [template]);
  try {
    const api = new Api(server);
    await fromPool(context, api, server);
    await measureCells(context, api);
  } finally {
    await server.destroy();
  }
}

async function fromPool(context: BenchContext, api: Api, server: ServerAddress): Promise<void> {
  const samples: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    context.progress(`first cells: ${round} of ${rounds}`, round / rounds / 2);
    await waitForIdleMachines(server);
    const { ms, result: id } = await measureTime(async () => {
      const made = await api.json<{ id: string }>("POST", "/v1/sandboxes", 201, { template });
      await cell(api, made.id);
      return made.id;
    });
    samples.push(ms);
    await api.remove(id);
  }
  const note = `n=${rounds}, one at a time, a pool of one`;
  const what = "create → first cell's result, warm";
  const bar = { atMost: 100 };
  context.report({ what: `${what}, p50`, value: percentile(samples, 50), unit: "ms", samples, bar, note });
  context.report({ what: `${what}, p99`, value: percentile(samples, 99), unit: "ms", note });
}

async function measureCells(context: BenchContext, api: Api): Promise<void> {
  const { id } = await api.json<{ id: string }>("POST", "/v1/sandboxes", 201, { template });
  for (let round = 0; round < 20; round += 1) await cell(api, id);
  const samples: number[] = [];
  for (let round = 0; round < cells; round += 1) {
    context.progress(`cells: ${round} of ${cells}`, 0.5 + round / cells / 2);
    samples.push((await measureTime(() => cell(api, id))).ms);
  }
  await api.remove(id);
  const note = `n=${cells}, one at a time`;
  const bar = { atMost: 15 };
  context.report({ what: "cell 1+1, p50", value: percentile(samples, 50), unit: "ms", samples, bar, note });
  context.report({ what: "cell 1+1, p99", value: percentile(samples, 99), unit: "ms", note });
}

async function cell(api: Api, id: string): Promise<void> {
  const { results } = await api.json<{ results: { text: string }[] }>(
    "POST",
    `/v1/sandboxes/${id}/code`,
    200,
    {
      code: "1+1",
    },
  );
  if (results[0]?.text !== "2") throw new Error(`1+1 is ${JSON.stringify(results)}`);
}
