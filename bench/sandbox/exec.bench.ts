/**
 * Overhead of an exec: the round trip of a buffered exec over HTTP minus the duration of the process, as the guest
 * measures it.
 *
 * The guest rounds to the nearest millisecond, so the mean of many differences is more precise than each difference.
 */
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { mean, percentile, measureTime } from "../support/measure.ts";

export const name = "exec";

const rounds = 300;
const input = { args: ["/bin/true"] };

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  const { id } = await api.create();
  await waitForIdleMachines(context);
  for (let round = 0; round < 10; round += 1) await api.exec(id, input);
  const trips: number[] = [];
  const overheads: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    context.progress(`${round} of ${rounds}`, round / rounds);
    const { ms, result } = await measureTime(() => api.exec(id, input));
    trips.push(ms);
    overheads.push(ms - result.duration_ms);
  }
  await api.remove(id);
  const note = `n=${rounds}, /bin/true by args`;
  const bar = { atMost: 3 };
  const what = "exec round trip less the process's own time";
  context.report({
    what: `${what}, p50`,
    value: percentile(overheads, 50),
    unit: "ms",
    samples: overheads,
    bar,
    note,
  });
  context.report({
    what: `${what}, mean`,
    value: mean(overheads),
    unit: "ms",
    note: "free of the guest's rounding",
  });
  context.report({
    what: "exec round trip, p50",
    value: percentile(trips, 50),
    unit: "ms",
    samples: trips,
    note,
  });
  context.report({ what: "exec round trip, p99", value: percentile(trips, 99), unit: "ms", note });
}
