import { pino } from "pino";
import { expect, onTestFinished, test, vi } from "vitest";
import type { Host } from "./host.ts";
import { record, sampleIntervalSeconds, Sampler, windowSeconds } from "./sampler.ts";

const reading = (second: number, cpuSeconds: number) => ({
  at: new Date(second * 1000),
  cpuSeconds,
  memoryBytes: 5,
  processes: 1,
  diskBytes: 0,
  egressDenied: 0,
  networkRxBytes: 0,
  networkTxBytes: 0,
});
const track = () => ({ last: undefined, samples: [] }) as Parameters<typeof record>[0];

test("divides the CPU time between two readings by the time between them", () => {
  const one = track();
  record(one, reading(10, 1));
  expect(one.samples).toEqual([]);
  record(one, reading(12, 2));
  expect(one.samples).toEqual([{ at: new Date(12_000), usageCores: 0.5, memoryBytes: 5 }]);
});

test("treats a CPU counter that decreased as no use", () => {
  const one = track();
  record(one, reading(10, 5));
  record(one, reading(11, 0));
  expect(one.samples[0]?.usageCores).toBe(0);
});

test("keeps only the last minute", () => {
  const one = track();
  for (let second = 0; second < 200; second += 1) record(one, reading(second, second));
  expect(one.samples).toHaveLength(windowSeconds);
  expect(one.samples[0]?.at.getTime()).toBe(140_000);
});

test("does not start a reading of a machine while the previous reading is in flight", async () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const begun: PromiseWithResolvers<ReturnType<typeof reading>>[] = [];
  const stats = () => {
    const pending = Promise.withResolvers<ReturnType<typeof reading>>();
    begun.push(pending);
    return pending.promise;
  };
  const sampler = new Sampler({ host: { stats } as unknown as Host, log: pino({ enabled: false }) });
  onTestFinished(() => sampler.close());
  sampler.watch("m1");
  await vi.advanceTimersByTimeAsync(3 * sampleIntervalSeconds * 1000);
  expect(begun).toHaveLength(1);
  begun[0]?.resolve(reading(1, 1));
  await vi.advanceTimersByTimeAsync(sampleIntervalSeconds * 1000);
  expect(begun).toHaveLength(2);
});
