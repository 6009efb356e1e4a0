/**
 * Pauses and resumes over HTTP: an idle sandbox, and sandboxes whose memory is full of incompressible data. A pause
 * ends with its response, when every byte is on disk and hashed. A resume ends with the response of the first exec.
 */
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { percentile, measureTime } from "../support/measure.ts";

export const name = "pause";

interface Load {
  what: string;
  heapMb: number;
  rounds: number;
  pauseMs: number;
  resumeMs: number;
}

const loads: Load[] = [
  { what: "an idle sandbox", heapMb: 0, rounds: 20, pauseMs: 300, resumeMs: 450 },
  { what: "200 MB of heap", heapMb: 200, rounds: 7, pauseMs: 2000, resumeMs: 2000 },
  { what: "500 MB of heap", heapMb: 500, rounds: 5, pauseMs: 4000, resumeMs: 4000 },
];

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  for (const [index, load] of loads.entries()) {
    context.progress(load.what, index / loads.length);
    await measure(context, api, load);
  }
}

async function measure(
  context: BenchContext,
  api: Api,
  { what, heapMb, rounds, pauseMs, resumeMs }: Load,
): Promise<void> {
  const { id } = await api.create();
  if (heapMb > 0) await fill(api, id, heapMb);
  await waitForIdleMachines(context);
  const [pauses, resumes, sizes] = [[] as number[], [] as number[], [] as number[]];
  for (let round = 0; round < rounds; round += 1) {
    const pause = await measureTime(() =>
      api.json<{ snapshot_size_mb: number }>("POST", `/v1/sandboxes/${id}/pause`, 200),
    );
    sizes.push(pause.result.snapshot_size_mb);
    // The machine's memory is freed during this wait.
    await waitForIdleMachines(context);
    const resume = await measureTime(async () => {
      await api.json("POST", `/v1/sandboxes/${id}/resume`, 200);
      await api.exec(id, { args: ["/bin/true"] });
    });
    pauses.push(pause.ms);
    resumes.push(resume.ms);
  }
  await api.remove(id);
  const note = `n=${rounds}, snapshot of ${Math.max(...sizes)} MB`;
  const row = (of: string, samples: number[], atMost: number) =>
    context.report({
      what: `${of}, ${what}, p50`,
      value: percentile(samples, 50),
      unit: "ms",
      samples,
      bar: { atMost },
      note,
    });
  row("pause", pauses, pauseMs);
  row("resume to the first exec's answer", resumes, resumeMs);
}

/** Starts a process with this much memory in the sandbox. Perl is part of every Debian. */
async function fill(api: Api, id: string, heapMb: number): Promise<void> {
  const hold = `open F, "</dev/urandom"; read F, $x, ${heapMb} << 20; open G, ">/tmp/full"; close G; sleep 1e6`;
  await api.exec(id, {
    command: `setsid perl -e '${hold}' >/dev/null 2>&1 & until [ -e /tmp/full ]; do sleep 0.1; done`,
  });
}
