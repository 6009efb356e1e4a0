import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test } from "vitest";
import { UserRanges, USERS } from "./users.ts";

let directory: string;

beforeEach(async () => {
  directory = join(await mkdtemp(join(tmpdir(), "kontor-users-")), "users");
  onTestFinished(() => rm(join(directory, ".."), { recursive: true }));
});

async function open(instance: number, machines: string[] = []): Promise<UserRanges> {
  const ranges = new UserRanges({ directory, instance });
  await ranges.open((id) => machines.includes(id));
  return ranges;
}

test("leases ranges that overlap neither each other nor those of older machines and builds", async () => {
  const [one, other] = await Promise.all([open(1), open(2)]);
  const firsts = await Promise.all(
    Array.from({ length: 40 }, (_, index) => (index % 2 === 0 ? one : other).lease(`m${index}`)),
  );
  expect(new Set(firsts).size).toBe(40);
  for (const first of firsts) {
    expect(first % USERS).toBe(0);
    expect(first).toBeGreaterThanOrEqual(2 ** 24);
    expect(first + USERS).toBeLessThanOrEqual(2 ** 29);
  }
});

test("leases a released range again", async () => {
  const ranges = await open(1);
  const first = await ranges.lease("m1");
  await ranges.lease("m2");
  await ranges.release("m1");
  await ranges.release("m1");
  expect(await ranges.lease("m3")).toBe(first);
});

test("keeps the leases of machines that outlive the server, and ends the leases of machines that are gone", async () => {
  const before = await open(1);
  const [kept] = [await before.lease("m1"), await before.lease("m2")];
  const neighbour = await open(2);
  await neighbour.lease("m3");
  const after = await open(1, ["m1"]);
  expect(await readdir(directory)).toHaveLength(2);
  expect(await after.lease("m1")).toBe(kept);
  expect(await after.lease("m4")).not.toBe(kept);
});
