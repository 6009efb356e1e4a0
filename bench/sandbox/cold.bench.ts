/**
 * A hundred sandboxes in sequence without a warm pool: the time from `POST /v1/sandboxes` to the result of the first
 * exec. Afterwards, none of their resources may be left on the host.
 */
import { traces } from "../../e2e/support/host-state.ts";
import type { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { type ServerAddress, waitForIdleMachines } from "../support/machines.ts";
import { percentile, measureTime } from "../support/measure.ts";
import { withOwnServer, withoutPool } from "../support/own-server.ts";

export const name = "cold";

const rounds = 100;

export async function run(context: BenchContext): Promise<void> {
  await withOwnServer(context, withoutPool, async (server, api) => {
    // The host keeps a few empty namespaces for later machines. These first machines create them.
    for (let round = 0; round < 3; round += 1) await oneSandbox(api, server);
    const before = await traces(server.dataDir);
    const samples: number[] = [];
    for (let round = 0; round < rounds; round += 1) {
      context.progress(`${round} of ${rounds}`, round / rounds);
      samples.push(await oneSandbox(api, server));
    }
    const note = `n=${samples.length}, one at a time, no pool`;
    const what = "create → first exec result, cold";
    context.report({
      what: `${what}, p50`,
      value: percentile(samples, 50),
      unit: "ms",
      samples,
      bar: { atMost: 400 },
      note,
    });
    context.report({ what: `${what}, p99`, value: percentile(samples, 99), unit: "ms", note });

    const after = await traces(server.dataDir);
    const found = Object.entries(after).flatMap(([kind, names]) =>
      names.filter((name) => !before[kind]?.includes(name)).map((name) => `${kind}: ${name}`),
    );
    context.report({
      what: `left on the host by ${rounds} sandboxes`,
      value: found.length,
      unit: "things",
      bar: { atMost: 0 },
      note: found.length === 0 ? `looked at ${Object.keys(after).join(", ")}` : found.slice(0, 5).join("; "),
    });
  });
}

async function oneSandbox(api: Api, server: ServerAddress): Promise<number> {
  const { ms, result } = await measureTime(async () => {
    const sandbox = await api.create();
    await api.exec(sandbox.id, { command: "echo ready" });
    return sandbox;
  });
  await api.remove(result.id);
  await waitForIdleMachines(server);
  return ms;
}
