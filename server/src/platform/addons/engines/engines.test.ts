import { expect, test } from "vitest";
import { settings, scramVerifier } from "./postgres.ts";
import { settings as redisSettings } from "./redis.ts";
import { failuresInRow, restartDelayMs } from "../instances/restart-backoff.ts";
import { extentOf, sizeNames } from "../sizes.ts";
import { variablesFrom } from "../access/variables.ts";

test("computes a PostgreSQL password's verifier (example of RFC 7677)", () => {
  const salt = Buffer.from("W22ZaJ0SNY7soEsUEjb6gQ==", "base64");
  // Keys of RFC 7677, section 3, for user `user` and password `pencil`.
  expect(scramVerifier("pencil", salt, 4096)).toBe(
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=",
  );
});

test.each(sizeNames)("fits PostgreSQL's settings to the memory and disk of size %s", (size) => {
  const extent = extentOf(size);
  const text = settings(extent);
  const megabytes = (name: string) => Number(new RegExp(`^${name} = (\\d+)MB$`, "m").exec(text)?.[1]);
  const memoryMb = extent.memoryBytes / 1024 ** 2;
  const connections = Number(/^max_connections = (\d+)$/m.exec(text)?.[1]);
  expect(megabytes("shared_buffers")).toBe(memoryMb / 4);
  expect(megabytes("shared_buffers") + connections * megabytes("work_mem")).toBeLessThanOrEqual(memoryMb);
  expect(megabytes("max_wal_size")).toBeLessThanOrEqual(extent.diskBytes / 1024 ** 2 / 8);
  expect(megabytes("min_wal_size")).toBeLessThanOrEqual(megabytes("max_wal_size"));
  expect(text).not.toMatch(/fsync|full_page_writes|synchronous_commit/);
});

test("turns durability off in the settings of throwaway instances only", () => {
  const text = settings(extentOf("small"), { isThrowaway: true });
  expect(text).toMatch(/^fsync = off$/m);
  // Each setting occurs once. PostgreSQL uses the last of two values; a human reader sees the first.
  const names = text.split("\n").map((line) => line.split(" = ")[0]);
  expect(new Set(names).size).toBe(names.length);
});

test("accepts no option of Redis but the eviction policy", () => {
  const extent = extentOf("small");
  expect(redisSettings(extent)).toMatch(/^maxmemory-policy noeviction$/m);
  expect(redisSettings(extent, { maxmemory_policy: "allkeys-lru" })).toMatch(
    /^maxmemory-policy allkeys-lru$/m,
  );
  expect(redisSettings(extent, { maxmemory_policy: "x\ndir /", appendfsync: "no" })).toBe(
    redisSettings(extent),
  );
});

test("restarts a database at once after its first failure, and after growing delays after further ones", () => {
  expect(restartDelayMs(failuresInRow(0, 0))).toBe(100);
  expect(restartDelayMs(4)).toBe(800);
  expect(restartDelayMs(400)).toBe(30_000);
  expect(failuresInRow(7, 60_000)).toBe(1);
});

test("names the oldest add-on's variable by its kind, and the others by their own names", () => {
  const rows = [
    { kind: "postgres", name: "main" },
    { kind: "postgres", name: "order-log" },
    { kind: "redis", name: "cache" },
  ] as const;
  expect(variablesFrom(rows, ({ name }) => name)).toEqual({
    DATABASE_URL: "main",
    ORDER_LOG_DATABASE_URL: "order-log",
    REDIS_URL: "cache",
  });
});
