import { expect, test } from "vitest";
import { USERS, UserRanges } from "./user-ranges.ts";

test("leases ranges that never overlap, within an installation and between installations", () => {
  const all = [0, 1, 63].flatMap((instance) => {
    const ranges = new UserRanges(instance);
    return Array.from({ length: 64 }, () => ranges.lease().first);
  });
  const sorted = all.toSorted((a, b) => a - b);
  expect(sorted.every((first, index) => index === 0 || first - (sorted[index - 1] ?? 0) >= USERS)).toBe(true);
  // (uid_t)-1 is no user, and ids below 2^30 belong to native machines and the host.
  expect(sorted.at(0)).toBe(2 ** 30);
  expect((sorted.at(-1) ?? 0) + USERS).toBeLessThan(2 ** 31);
});

test("leases a range again after its release, and refuses a 65th concurrent lease", () => {
  const ranges = new UserRanges(0);
  const leased = Array.from({ length: 64 }, () => ranges.lease());
  expect(() => ranges.lease()).toThrow("start fewer");
  leased[7]?.release();
  expect(ranges.lease().first).toBe(leased[7]?.first);
});
