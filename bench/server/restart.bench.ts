/**
 * `kill -9` of the server with five running sandboxes. Counts the sandboxes that the next start finds, and measures the
 * time until the server is ready.
 */
import type { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { machineCounts, waitForIdleMachines } from "../support/machines.ts";
import { measureTime } from "../support/measure.ts";
import { withOwnServer } from "../support/own-server.ts";

export const name = "restart";

const count = 5;

export async function run(context: BenchContext): Promise<void> {
  await withOwnServer(context, {}, async (server, api) => {
    const ids = await Promise.all(Array.from({ length: count }, async () => (await api.create()).id));
    for (const id of ids) await api.exec(id, { command: `echo ${id} >/workspace/mine` });
    await waitForIdleMachines(server);
    context.progress("kill -9", 0.5);
    await server.kill9();
    const { ms } = await measureTime(() => server.start());
    const [{ sandboxes }, alive] = await Promise.all([
      machineCounts(server),
      Promise.all(ids.map((id) => isAsItWas(api, id))),
    ]);
    const bar = { atLeast: count };
    context.report({
      what: `kill -9 with ${count} sandboxes: running and as they were`,
      value: alive.filter(Boolean).length,
      unit: `of ${count}`,
      bar,
      note: "exec works and the file each wrote is there",
    });
    context.report({
      what: "machines of sandboxes afterwards",
      value: sandboxes,
      unit: "machines",
      bar: { atMost: count },
      note: "none doubled",
    });
    context.report({
      what: "from start to ready again",
      value: ms,
      unit: "ms",
      note: "a new process; its PostgreSQL ran on, and is adopted like the machines",
    });
  });
}

async function isAsItWas(api: Api, id: string): Promise<boolean> {
  const result = await api.exec(id, { command: "cat /workspace/mine" }).catch(() => undefined);
  return result?.stdout.trim() === id;
}
