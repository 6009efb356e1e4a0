/**
 * What the way to a process costs: the round trip of a buffered exec over HTTP less the time the guest says the process
 * took from its start to its end. The guest's figure is rounded to a millisecond, to either side alike, so the mean of
 * many differences is finer than any one of them.
 */
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { settled } from "../support/machines.ts";
import { mean, percentile, timed } from "../support/measure.ts";

export const name = "exec";

const rounds = 300;
const input = { args: ["/bin/true"] };

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  const { id } = await api.create();
  await settled(context);
  for (let round = 0; round < 10; round += 1) await api.exec(id, input);
  const trips: number[] = [];
  const overheads: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    context.progress(`${round} of ${rounds}`, round / rounds);
    const { ms, result } = await timed(() => api.exec(id, input));
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
