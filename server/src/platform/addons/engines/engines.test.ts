import { expect, test } from "vitest";
import { settings, scramVerifier } from "./postgres.ts";
import { settings as redisSettings } from "./redis.ts";
import { failuresInRow, restartDelayMs } from "../instances/restart-backoff.ts";
import { extentOf, sizeNames } from "../sizes.ts";
import { variablesFrom } from "../access/variables.ts";

test("stores a password in PostgreSQL's form (RFC 7677's example)", () => {
  const salt = Buffer.from("W22ZaJ0SNY7soEsUEjb6gQ==", "base64");
  // Keys from RFC 7677, section 3: user, pencil.
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

test("turns durability off for throwaway instances only", () => {
  const text = settings(extentOf("small"), { isThrowaway: true });
  expect(text).toMatch(/^fsync = off$/m);
  // Each setting occurs once: PostgreSQL takes the last value, a human reader the first.
  const names = text.split("\n").map((line) => line.split(" = ")[0]);
  expect(new Set(names).size).toBe(names.length);
});

test("accepts only the eviction policy as an option of Redis", () => {
  const extent = extentOf("small");
  expect(redisSettings(extent)).toMatch(/^maxmemory-policy noeviction$/m);
  expect(redisSettings(extent, { maxmemory_policy: "allkeys-lru" })).toMatch(
    /^maxmemory-policy allkeys-lru$/m,
  );
  expect(redisSettings(extent, { maxmemory_policy: "x\ndir /", appendfsync: "no" })).toBe(
    redisSettings(extent),
  );
});

test("restarts a database at once after its first end, and ever more slowly after repeated ones", () => {
  expect(restartDelayMs(failuresInRow(0, 0))).toBe(100);
  expect(restartDelayMs(4)).toBe(800);
  expect(restartDelayMs(400)).toBe(30_000);
  expect(failuresInRow(7, 60_000)).toBe(1);
});

test("gives the oldest add-on of a kind the kind's variable, and the others their own", () => {
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
