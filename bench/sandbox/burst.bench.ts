/**
 * Twenty sandboxes created at the same moment. The first pool is as large as the burst. The default pool serves the first few
 * sandboxes from warm machines and boots the rest.
 */
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { type ServerAddress, waitForIdleMachines } from "../support/machines.ts";
import { percentile, measureTime } from "../support/measure.ts";
import { withOwnServer } from "../support/own-server.ts";

export const name = "burst";

const size = 20;

export async function run(context: BenchContext): Promise<void> {
  await waitForIdleMachines(context);
  await burst(context, new Api(context), context, "default pool");
  const roomy = { KONTOR_POOL_SIZE: String(size), KONTOR_POOL_MAX: String(size) };
  await withOwnServer(context, roomy, (server, api) => burst(context, api, server, `pool of ${size}`));
}

async function burst(context: BenchContext, api: Api, server: ServerAddress, kind: string): Promise<void> {
  context.progress(`${kind}: filling the pool`);
  const { warm } = await waitForIdleMachines(server);
  context.progress(`${kind}: ${size} at once`);
  const tries = await Promise.allSettled(
    Array.from({ length: size }, () =>
      measureTime(async () => {
        const { id } = await api.create();
        await api.exec(id, { command: "echo ready" });
        return id;
      }),
    ),
  );
  const made = tries.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
  const failed = tries.flatMap((one) => (one.status === "rejected" ? [String(one.reason)] : []));
  const what = `burst of ${size} at once, ${kind}`;
  const note = `n=${size}, ${warm} warm at the start`;
  context.report({
    what: `${what}: succeeded`,
    value: made.length,
    unit: "of 20",
    bar: { atLeast: size },
    note: failed[0] ?? note,
  });
  const samples = made.map(({ ms }) => ms);
  if (samples.length > 0) {
    context.report({ what: `${what}: p50`, value: percentile(samples, 50), unit: "ms", samples, note });
    context.report({ what: `${what}: p99`, value: percentile(samples, 99), unit: "ms", note });
  }
  await Promise.all(made.map(({ result }) => api.remove(result)));
  await waitForIdleMachines(server);
}
