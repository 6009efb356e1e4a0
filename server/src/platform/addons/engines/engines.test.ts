import { expect, test } from "vitest";
import { settings, scramVerifier } from "./postgres.ts";
import { settings as redisSettings } from "./redis.ts";
import { failuresInRow, restartDelayMs } from "../instances/restart-backoff.ts";
import { extentOf, sizeNames } from "../sizes.ts";
import { variablesFrom } from "../access/variables.ts";

test("a password is kept as PostgreSQL would keep it (RFC 7677's example)", () => {
  const salt = Buffer.from("W22ZaJ0SNY7soEsUEjb6gQ==", "base64");
  // Keys by RFC 7677 §3: user, pencil.
  expect(scramVerifier("pencil", salt, 4096)).toBe(
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=",
  );
});

test.each(sizeNames)("PostgreSQL's settings fit a %s one's memory and disk", (size) => {
  const extent = extentOf(size);
  const said = settings(extent);
  const megabytes = (name: string) => Number(new RegExp(`^${name} = (\\d+)MB$`, "m").exec(said)?.[1]);
  const memoryMb = extent.memoryBytes / 1024 ** 2;
  const connections = Number(/^max_connections = (\d+)$/m.exec(said)?.[1]);
  expect(megabytes("shared_buffers")).toBe(memoryMb / 4);
  expect(megabytes("shared_buffers") + connections * megabytes("work_mem")).toBeLessThanOrEqual(memoryMb);
  expect(megabytes("max_wal_size")).toBeLessThanOrEqual(extent.diskBytes / 1024 ** 2 / 8);
  expect(megabytes("min_wal_size")).toBeLessThanOrEqual(megabytes("max_wal_size"));
  expect(said).not.toMatch(/fsync|full_page_writes|synchronous_commit/);
});

test("only what is thrown away may forget", () => {
  const said = settings(extentOf("small"), { isThrowaway: true });
  expect(said).toMatch(/^fsync = off$/m);
  // Each once: PostgreSQL takes the last one, whoever reads takes the first.
  const names = said.split("\n").map((line) => line.split(" = ")[0]);
  expect(new Set(names).size).toBe(names.length);
});

test("Redis may be told what becomes of a write when its memory is used, and nothing else", () => {
  const extent = extentOf("small");
  expect(redisSettings(extent)).toMatch(/^maxmemory-policy noeviction$/m);
  expect(redisSettings(extent, { maxmemory_policy: "allkeys-lru" })).toMatch(
    /^maxmemory-policy allkeys-lru$/m,
  );
  expect(redisSettings(extent, { maxmemory_policy: "x\ndir /", appendfsync: "no" })).toBe(
    redisSettings(extent),
  );
});

test("a database that ends is begun again at once, and ever more slowly while it goes on ending", () => {
  expect(restartDelayMs(failuresInRow(0, 0))).toBe(100);
  expect(restartDelayMs(4)).toBe(800);
  expect(restartDelayMs(400)).toBe(30_000);
  expect(failuresInRow(7, 60_000)).toBe(1);
});

test("the oldest of a kind has its kind's variable, the others their own", () => {
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
