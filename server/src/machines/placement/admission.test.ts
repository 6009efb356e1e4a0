import fc from "fast-check";
import { expect, test } from "vitest";
import { diskRefusal, refusal } from "./admission.ts";

const GiB = 1024 ** 3;
const capacity = { memoryBytes: 8 * GiB, vcpus: 16, machines: 3 };

test("admits a machine that fits to the last byte, and refuses a larger one", () => {
  const committed = { memoryBytes: 7 * GiB, vcpus: 1, machines: 1 };
  expect(refusal(capacity, committed, { memoryBytes: GiB, vcpus: 1 })).toBeUndefined();
  expect(refusal(capacity, committed, { memoryBytes: GiB + 1, vcpus: 1 })).toMatch(
    /^memory: 1024 of 8192 MiB left/,
  );
});

test("names the short resource in a refusal: count, memory, CPU", () => {
  expect(refusal(capacity, { memoryBytes: 0, vcpus: 0, machines: 3 }, { memoryBytes: 1, vcpus: 1 })).toBe(
    "3 machines run already",
  );
  expect(refusal(capacity, { memoryBytes: 0, vcpus: 15, machines: 0 }, { memoryBytes: 1, vcpus: 2 })).toBe(
    "CPU: 1 of 16 cores left, 2 needed",
  );
});

test("admits machines until only the reserve of the disk is left", () => {
  expect(diskRefusal({ diskReserveBytes: GiB }, GiB)).toBeUndefined();
  expect(diskRefusal({ diskReserveBytes: GiB }, GiB - 1)).toBe("disk: 1023 MiB left, 1024 are kept free");
});

test("never admits more than the capacity, in any order of machines", () => {
  fc.assert(
    fc.property(fc.array(fc.record({ memoryBytes: fc.nat(8 * GiB), vcpus: fc.nat(16) })), (wanted) => {
      const committed = { memoryBytes: 0, vcpus: 0, machines: 0 };
      for (const one of wanted) {
        if (refusal(capacity, committed, one) !== undefined) continue;
        committed.memoryBytes += one.memoryBytes;
        committed.vcpus += one.vcpus;
        committed.machines += 1;
      }
      return (
        committed.memoryBytes <= capacity.memoryBytes &&
        committed.vcpus <= capacity.vcpus &&
        committed.machines <= capacity.machines
      );
    }),
  );
});
