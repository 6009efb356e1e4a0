/** Counts of machines from the server's /metrics, and a wait until no machine is being started or removed. */
import { setTimeout as sleep } from "node:timers/promises";
import type { BenchContext } from "./contract.ts";

export interface MachineCounts {
  /** Number of warm machines that are ready. */
  warm: number;
  /** Target size of the warm pool. */
  wanted: number;
  sandboxes: number;
  /** Number of machines that are starting or stopping. */
  moving: number;
}

const settleTimeoutMs = 120_000;
/** Wait in milliseconds for background work after the last row is gone: removal of namespaces, writes of PostgreSQL. */
const quietMs = 100;

/** A server and its operator's token. */
export type ServerAddress = Pick<BenchContext, "baseUrl" | "token">;

export async function machineCounts({ baseUrl, token }: ServerAddress): Promise<MachineCounts> {
  const response = await fetch(`${baseUrl}/metrics`, { headers: { authorization: `Bearer ${token}` } });
  return parseCounts(await response.text());
}

export function parseCounts(text: string): MachineCounts {
  const counts: MachineCounts = { warm: 0, wanted: 0, sandboxes: 0, moving: 0 };
  for (const [, name, labels = "", value] of text.matchAll(
    /^(kontor_machines|kontor_pool_wanted)\{(.*)\} (\d+)$/gm,
  )) {
    const count = Number(value);
    if (name === "kontor_pool_wanted") counts.wanted += count;
    else if (!labels.includes('state="ready"')) counts.moving += count;
    else if (labels.includes('owner="pool"')) counts.warm += count;
    else counts.sandboxes += count;
  }
  return counts;
}

/** Waits until the pool is full and no machine starts or stops. */
export async function waitForIdleMachines(server: ServerAddress): Promise<MachineCounts> {
  const deadline = Date.now() + settleTimeoutMs;
  for (;;) {
    const counts = await machineCounts(server);
    if (counts.moving === 0 && counts.warm === counts.wanted) {
      await sleep(quietMs);
      return counts;
    }
    if (Date.now() > deadline) throw new Error(`the machines do not come to rest: ${JSON.stringify(counts)}`);
    await sleep(25);
  }
}
