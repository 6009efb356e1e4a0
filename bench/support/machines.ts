/** Counts of machines from the server's /metrics, and a wait until no machine is being started or removed. */
import { setTimeout as sleep } from "node:timers/promises";
import type { BenchContext } from "./contract.ts";

export interface MachineCounts {
  /** Warm machines that are ready. */
  warm: number;
  /** Warm machines the pool wants. */
  wanted: number;
  sandboxes: number;
  /** On the way up or down. */
  moving: number;
}

const settleTimeoutMs = 120_000;
/** What the background still does once the last row is gone: namespaces taken down, PostgreSQL's own writes. */
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

/** Until the pool holds what it wants and nothing is being started or removed. */
export async function settled(server: ServerAddress): Promise<MachineCounts> {
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
