import { expect, test } from "vitest";
import { type RedisDescription, listDifferences, readKeyspace } from "./redis-contents.ts";
import { withoutMark } from "./redis-stream.ts";

const end = Buffer.from([0xff, 1, 2, 3, 4, 5, 6, 7, 8]);
const mark = Buffer.from("0123456789abcdef0123456789abcdef01234567");

async function through(whole: Buffer, pieceBytes: number): Promise<Buffer> {
  const pieces = async function* () {
    for (let at = 0; at < whole.length; at += pieceBytes) yield whole.subarray(at, at + pieceBytes);
  };
  return Buffer.concat(await Array.fromAsync(withoutMark(pieces())));
}

test("removes only the mark after an RDB file, wherever the stream is split", async () => {
  const file = Buffer.concat([Buffer.from("REDIS0010"), Buffer.alloc(300, "x"), end]);
  for (const pieceBytes of [1, 7, 40, 49, 50, 1_000]) {
    expect((await through(Buffer.concat([file, mark]), pieceBytes)).equals(file)).toBe(true);
    expect((await through(file, pieceBytes)).equals(file)).toBe(true);
  }
  expect((await through(Buffer.from("short"), 2)).toString()).toBe("short");
});

test("counts keys by database, and names the differences of two contents", () => {
  const info = "# Keyspace\r\ndb0:keys=12,expires=3,avg_ttl=0\r\ndb3:keys=1,expires=0,avg_ttl=0\r\n";
  expect(readKeyspace(info)).toEqual({ db0: 12, db3: 1 });
  const description: RedisDescription = { counts: { db0: 12 }, digest: null, sample: { a: "1", b: "2" } };
  expect(listDifferences(description, structuredClone(description))).toEqual([]);
  const other = { ...description, counts: { db0: 11, db3: 1 }, sample: { a: "1", b: "3" } };
  expect(listDifferences(description, other)).toEqual([
    "db0 has 11 keys, not 12",
    "db3 has 1 keys, not 0",
    "1 of 2 keys have different values",
  ]);
  expect(listDifferences({ ...description, digest: "x" }, { ...description, digest: "y" })).toEqual([
    "its keys have different values",
  ]);
});
