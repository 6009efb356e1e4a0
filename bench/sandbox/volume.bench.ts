/**
 * A sandbox with a volume, which always starts cold. Measures writes to /persist, to the machine's own disk and to the
 * host's disk: large blocks with one sync at the end, and small blocks with a sync each.
 */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { run as runProgram } from "@kontor/runtime/exec.ts";
import { Api, type Sandbox } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { percentile, measureTime } from "../support/measure.ts";

export const name = "volume";

const creates = 10;
const rounds = 5;
const volume = "bench";
const largeMiB = 256;
const smallWrites = 200;

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  context.progress("creates", 0);
  const starts: number[] = [];
  for (let round = 0; round <= creates; round += 1) {
    const { ms, result: id } = await measureTime(async () => {
      const made = await withVolume(api);
      await api.exec(made.id, { args: ["/bin/true"] });
      return made.id;
    });
    // The first create is not counted, because it makes the volume.
    if (round > 0) starts.push(ms);
    await api.remove(id);
    await waitForIdleMachines(context);
  }
  context.report({
    what: "create with a volume to the first exec's answer, p50",
    value: percentile(starts, 50),
    unit: "ms",
    samples: starts,
    bar: { atMost: 600 },
    note: `n=${creates}, cold: no machine of a pool can be given a volume`,
  });

  const { id } = await withVolume(api);
  const inside = (argv: string[]): Promise<unknown> => api.exec(id, { args: argv });
  const host = (argv: string[]): Promise<unknown> => runProgram(argv, { timeoutMs: 120_000 });
  const places = [
    { what: "/persist", path: "/persist/written", write: inside },
    { what: "/workspace", path: "/workspace/written", write: inside },
    { what: "the bare host", path: join(context.dataDirectory, "written"), write: host },
  ];
  for (const [index, { what, path, write }] of places.entries()) {
    context.progress(`writes to ${what}`, (index + 1) / (places.length + 1));
    const [large, small] = [[] as number[], [] as number[]];
    for (let round = 0; round < rounds; round += 1) {
      const whole = await measureTime(() => write(dd(path, "1M", largeMiB, "conv=fsync")));
      large.push((largeMiB * 1024 ** 2) / 1e6 / (whole.ms / 1000));
      const each = await measureTime(() => write(dd(path, "4k", smallWrites, "oflag=dsync")));
      small.push(each.ms / smallWrites);
    }
    context.report({
      what: `${largeMiB} MiB to ${what}, one sync at the end, p50`,
      value: percentile(large, 50),
      unit: "MB/s",
      samples: large,
      note: `n=${rounds}`,
    });
    context.report({
      what: `4 KiB to ${what}, each synced, p50`,
      value: percentile(small, 50),
      unit: "ms",
      samples: small,
      note: `n=${rounds}, means of ${smallWrites} writes`,
    });
  }
  await rm(join(context.dataDirectory, "written"), { force: true });
  await api.remove(id);
  await waitForIdleMachines(context);
  const { status } = await api.send("DELETE", `/v1/sandboxes/volumes/${volume}`);
  if (status !== 204) throw new Error(`the volume was not deleted: ${status}`);
}

function withVolume(api: Api): Promise<Sandbox> {
  return api.json<Sandbox>("POST", "/v1/sandboxes", 201, { template: "debian-12", volume });
}

function dd(path: string, size: string, count: number, sync: string): string[] {
  return ["dd", "if=/dev/zero", `of=${path}`, `bs=${size}`, `count=${count}`, sync, "status=none"];
}
