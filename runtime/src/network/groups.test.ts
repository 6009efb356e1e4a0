import { expect, test } from "vitest";
import { serviceAddress } from "./addresses.ts";
import { Groups } from "./groups.ts";

const SERVICE = { name: "db.internal", address: serviceAddress(0), ports: [5432] };
const MINUTE_MS = 60_000;

/** Returns the group number that an nft text assigns to the address of a slot. */
const markIn = (text: string, address: string) =>
  new RegExp(`members { ${address} \\. (\\d+) }`).exec(text)?.[1];

test("returns one short nft text for each join, serve and leave, and adds each element before its deletion", () => {
  const groups = new Groups(0);
  const joined = groups.join(0, "a");
  const mark = markIn(joined, "100.64.0.1");
  expect(joined).toBe(
    `add element inet kontor0 groups { 100.64.0.1 : ${mark} }\n` +
      `add element inet kontor0 members { 100.64.0.1 . ${mark} }\n` +
      "add element inet kontor0 askers { 100.64.0.1 }\n",
  );
  expect(groups.serve(0, SERVICE)).toBe(
    `add element inet kontor0 services { ${mark} . 198.19.0.1 . 5432 : 100.64.0.1 }\n` +
      `add element inet kontor0 served { ${mark} . 198.19.0.1 . 5432 . 100.64.0.1 }\n`,
  );
  const lines = groups.leave(0).trim().split("\n");
  expect(lines.length).toBe(10);
  for (let line = 0; line < lines.length; line += 2) {
    expect(lines[line + 1]).toBe(lines[line]?.replace("add", "delete"));
  }
  expect(groups.leave(0)).toBe("");
});

test("keeps one number for a group with members, and never gives it to another group", () => {
  const groups = new Groups(0);
  const marks = Array.from({ length: 200 }, (_, slot) =>
    markIn(groups.join(slot, `group-${slot % 100}`), `100.64.0.${slot + 1}`),
  );
  expect(new Set(marks).size).toBe(100);
  expect(marks.slice(0, 100)).toEqual(marks.slice(100));
});

test("keeps the numbers of an earlier process, and declares its state unchanged", () => {
  const before = new Groups(0);
  before.join(0, "a");
  before.join(1, "a");
  before.join(2, "b");
  before.serve(0, SERVICE);
  const said = before.declare();
  const after = new Groups(0);
  after.adopt([
    { slot: 0, privateNetwork: { group: "a", serves: SERVICE } },
    { slot: 1, privateNetwork: { group: "a" } },
    { slot: 2, privateNetwork: { group: "b" } },
  ]);
  const addresses = ["100.64.0.1", "100.64.0.2", "100.64.0.3"];
  after.recall(new Map(addresses.map((address, slot) => [slot, Number(markIn(said, address))])));
  expect(after.declare()).toBe(said);
  expect(after.find(1, "db.internal")).toBe(SERVICE.address);
});

test("separates two groups that had the same number", () => {
  const groups = new Groups(0);
  groups.adopt([
    { slot: 0, privateNetwork: { group: "a" } },
    { slot: 1, privateNetwork: { group: "b" } },
  ]);
  groups.recall(new Map([0, 1].map((slot) => [slot, 7])));
  const said = groups.declare();
  expect(markIn(said, "100.64.0.1")).toBe("7");
  expect(markIn(said, "100.64.0.2")).not.toBe("7");
});

test("resolves a name for ten minutes after its service ended, within its group only", () => {
  let now = 0;
  const groups = new Groups(0, () => now);
  groups.join(0, "a");
  groups.join(1, "a");
  groups.join(2, "b");
  groups.serve(0, SERVICE);
  expect([0, 1, 2, 3].map((slot) => groups.find(slot, "db.internal"))).toEqual([
    SERVICE.address,
    SERVICE.address,
    undefined,
    undefined,
  ]);
  groups.leave(0);
  now = 9 * MINUTE_MS;
  expect(groups.find(1, "db.internal")).toBe(SERVICE.address);
  now = 11 * MINUTE_MS;
  expect(groups.find(1, "db.internal")).toBeUndefined();
});

test("declares the whole state once after a call of `doubt`", () => {
  const groups = new Groups(0);
  groups.join(0, "a");
  groups.doubt();
  const text = groups.join(1, "a");
  expect(text).toContain("flush set inet kontor0 members");
  expect(text).toContain("{ 100.64.0.1 }");
  expect(groups.isInDoubt).toBe(false);
  expect(groups.leave(1)).not.toContain("flush");
});

test("keeps a name with the machine that serves it last when the earlier machine ends", () => {
  const groups = new Groups(0);
  groups.join(1, "a");
  groups.serve(1, { ...SERVICE, address: serviceAddress(1) });
  groups.join(2, "a");
  groups.serve(2, { ...SERVICE, address: serviceAddress(2) });
  groups.leave(1);
  expect(groups.find(2, SERVICE.name)).toBe(serviceAddress(2));
});
