import { expect, test } from "vitest";
import type { App } from "#app.ts";
import { noCapacity } from "../errors.ts";
import { makeRoom } from "./placement.ts";
import { withReclaim } from "./reclaim.ts";

function host(diskFreeBytes: number) {
  let asked = 0;
  const machines = {
    capacity: { diskReserveBytes: 1 },
    host: { facts: async () => ({ diskFreeBytes }) },
    reclaimMemory: async () => (asked += 1) < 3,
  };
  return { app: { machines } as unknown as Pick<App, "machines">, asked: () => asked };
}

test("repeats a refused placement for as long as an owner frees memory", async () => {
  const { app, asked } = host(1);
  const refused = withReclaim(app, () => Promise.reject(noCapacity("memory")));
  await expect(refused).rejects.toMatchObject({ code: "no_capacity" });
  expect(asked()).toBe(3);
});

test("does not move machines to a disk that is full", async () => {
  const { app, asked } = host(0);
  const refused = withReclaim(app, () => makeRoom(app, null as never, null as never, { mayEvict: true }));
  await expect(refused).rejects.toMatchObject({ code: "no_capacity", status: 503 });
  expect(asked()).toBe(0);
});
