/**
 * Forks over HTTP: the time for which the source does not respond, and the time until the clones do. For comparison, a
 * new sandbox with the same files copied into it.
 */
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { percentile, measureTime } from "../support/measure.ts";

export const name = "fork";

const heapMb = 100;
const files = 10;
const fileMb = 10;
const rounds = 7;

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  const source = await api.create();
  await fill(api, source.id);
  const row = (what: string, samples: number[], bar?: { atMost: number }, note = `n=${samples.length}`) =>
    context.report({
      what: `${what}, ${heapMb} MB of heap and ${files * fileMb} MB of files, p50`,
      value: percentile(samples, 50),
      unit: "ms",
      samples,
      ...(bar ? { bar } : {}),
      note,
    });

  const idle: number[] = [];
  const gaps: number[] = [];
  const forks = new Map<number, number[]>([
    [1, []],
    [5, []],
  ]);
  for (const [index, [count, samples]] of [...forks].entries()) {
    for (let round = 0; round < rounds; round += 1) {
      context.progress(`fork into ${count}`, (index + round / rounds) / 3);
      await waitForIdleMachines(context);
      const watch = watchSource(api, source.id);
      await watch.isWarm;
      const fork = await measureTime(async () => {
        const { items } = await api.json<{ items: { id: string }[] }>(
          "POST",
          `/v1/sandboxes/${source.id}/fork`,
          201,
          { count },
        );
        await api.exec(items[0]?.id ?? "", { args: ["/bin/true"] });
        return items;
      });
      const { longestMs, usualMs } = await watch.end();
      samples.push(fork.ms);
      idle.push(usualMs);
      if (count === 1) gaps.push(longestMs);
      for (const { id } of fork.result) await api.remove(id);
    }
  }
  const copies: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    context.progress("create and copy", (2 + round / rounds) / 3);
    await waitForIdleMachines(context);
    const copy = await measureTime(() => createAndCopy(api, source.id));
    copies.push(copy.ms);
    await api.remove(copy.result);
  }
  await api.remove(source.id);

  const note = `n=${gaps.length}; a stat of it takes ${percentile(idle, 50).toFixed(1)} ms otherwise`;
  row("longest time the source does not answer while it is forked", gaps, { atMost: 500 }, note);
  const [one = [], five = []] = forks.values();
  row("fork into 1 to its first exec's answer", one, { atMost: 1500 });
  row("fork into 5 to the first exec's answer of one", five, { atMost: 6000 });
  row("create, copy of the files, first exec", copies);
  context.report({
    what: `create and copy, as many times the time of a fork, ${heapMb} MB`,
    value: percentile(copies, 50) / percentile(one, 50),
    unit: "×",
    note: "the copy has the files alone; a fork has the memory as well",
  });
}

/** Requests the date of a file in the source repeatedly, until the watch is stopped. */
function watchSource(
  api: Api,
  id: string,
): {
  isWarm: Promise<void>;
  end: () => Promise<{ longestMs: number; usualMs: number }>;
} {
  const warm = Promise.withResolvers<void>();
  let isOver = false;
  const asking = (async () => {
    const samples: number[] = [];
    while (!isOver) {
      const { ms } = await measureTime(() =>
        api.json("GET", `/v1/sandboxes/${id}/files/stat?path=/workspace`, 200),
      );
      samples.push(ms);
      if (samples.length === 20) warm.resolve();
    }
    return { longestMs: Math.max(...samples), usualMs: percentile(samples, 50) };
  })();
  asking.catch(warm.reject);
  return {
    isWarm: warm.promise,
    end: () => {
      isOver = true;
      return asking;
    },
  };
}

/**
 * Fills a sandbox: a process with this much memory, and files of the same total size, each small enough for the file
 * calls. Perl is part of every Debian.
 */
async function fill(api: Api, id: string): Promise<void> {
  const hold = `open F, "</dev/urandom"; read F, $x, ${heapMb} << 20; open G, ">/tmp/full"; close G; sleep 1e6`;
  await api.exec(id, {
    command: `for n in $(seq 1 ${files}); do head -c ${fileMb}M /dev/urandom > /workspace/$n; done
      setsid perl -e '${hold}' >/dev/null 2>&1 & until [ -e /tmp/full ]; do sleep 0.1; done`,
  });
}

/** Copies a sandbox without a fork: reads the files of one sandbox and writes them into another. */
async function createAndCopy(api: Api, source: string): Promise<string> {
  const { id } = await api.create();
  for (let n = 1; n <= files; n += 1) {
    const path = `/workspace/${n}`;
    const of = (sandbox: string) => `/v1/sandboxes/${sandbox}/files`;
    const { content } = await api.json<{ content: string }>("GET", `${of(source)}?path=${path}`, 200);
    await api.json("POST", of(id), 200, { path, content });
  }
  await api.exec(id, { args: ["/bin/true"] });
  return id;
}
