/**
 * Writes a file of 16 MiB into a sandbox and reads it back through the API: base64 in JSON, one request each.
 */
import { createHash, randomBytes } from "node:crypto";
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { percentile, measureTime } from "../support/measure.ts";

export const name = "files";

const sizeBytes = 16 * 1024 ** 2;
const rounds = 15;
const path = "/workspace/sixteen";

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  const { id } = await api.create();
  await waitForIdleMachines(context);
  const content = randomBytes(sizeBytes);
  const body = Buffer.from(JSON.stringify({ path, content: content.toString("base64") }));
  const writes: number[] = [];
  const reads: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    context.progress(`${round} of ${rounds}`, round / rounds);
    const written = await measureTime(() => api.send("POST", `/v1/sandboxes/${id}/files`, body));
    if (written.result.status !== 200) throw new Error(`write: ${written.result.bytes.toString()}`);
    const read = await measureTime(() => api.send("GET", `/v1/sandboxes/${id}/files?path=${path}`));
    if (sha256(contentOf(read.result.bytes)) !== sha256(content)) throw new Error("another file came back");
    // The first round is not counted, because it grows buffers and caches.
    if (round === 0) continue;
    writes.push(megabytesPerSecond(written.ms));
    reads.push(megabytesPerSecond(read.ms));
  }
  await api.remove(id);
  const note = `n=${rounds - 1}, base64 in JSON, hashes compared`;
  const bar = { atLeast: 100 };
  context.report({
    what: "write of 16 MiB, p50",
    value: percentile(writes, 50),
    unit: "MB/s",
    samples: writes,
    bar,
    note,
  });
  context.report({
    what: "read of 16 MiB, p50",
    value: percentile(reads, 50),
    unit: "MB/s",
    samples: reads,
    bar,
    note,
  });
}

function contentOf(json: Buffer): Buffer {
  return Buffer.from((JSON.parse(json.toString()) as { content: string }).content, "base64");
}

function sha256(bytes: Buffer): string {
  return createHash("sha256").update(bytes).digest("hex");
}

function megabytesPerSecond(ms: number): number {
  return sizeBytes / 1e6 / (ms / 1000);
}
