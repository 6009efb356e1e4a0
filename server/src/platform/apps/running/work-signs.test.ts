import { expect, test } from "vitest";
import { WorkSigns } from "./work-signs.ts";

/** A fake process whose readings a test sets. */
function process() {
  const now = { at: 0, cpuSeconds: 0, outputBytes: 0, isGone: false };
  const read = async <T>(value: T) => {
    if (now.isGone) throw new Error("the machine is gone");
    return value;
  };
  const host = { stats: () => read({ at: new Date(now.at), cpuSeconds: now.cpuSeconds }) };
  const guest = { getCommand: () => read({ outputBytes: now.outputBytes }) };
  const signs = new WorkSigns({ machines: { host } } as never, {
    machine: "m1",
    command: "app-1",
    guest: () => guest as never,
  });
  return { now, signs };
}

test("counts CPU time since the last reading, above that of an idle process", async () => {
  const { now, signs } = process();
  expect((await signs.read()).usedCpu).toBe(false);
  Object.assign(now, { at: 1_000, cpuSeconds: 0.02 });
  expect((await signs.read()).usedCpu).toBe(false);
  Object.assign(now, { at: 2_000, cpuSeconds: 0.12 });
  expect((await signs.read()).usedCpu).toBe(true);
  expect((await signs.read()).usedCpu).toBe(false);
});

test("counts each output once, and no work while the machine does not respond", async () => {
  const { now, signs } = process();
  expect((await signs.read()).wrote).toBe(false);
  now.outputBytes = 10;
  expect((await signs.read()).wrote).toBe(true);
  expect((await signs.read()).wrote).toBe(false);
  Object.assign(now, { isGone: true, outputBytes: 20, at: 5_000, cpuSeconds: 5 });
  expect(await signs.read()).toEqual({ usedCpu: false, wrote: false });
});
