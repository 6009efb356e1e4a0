import fc from "fast-check";
import { expect, test } from "vitest";
import { REFUSED_RANGES } from "@kontor/runtime/network/rules.ts";
import { isPublicAddress, isWithin, ownAddresses, parseRange, rangesOf } from "./addresses.ts";

test.for([
  ["0.0.0.0"],
  ["10.0.0.1"],
  ["100.64.0.1"],
  ["100.127.255.254"],
  ["127.0.0.1"],
  ["127.255.255.254"],
  ["169.254.169.254"],
  ["172.16.0.1"],
  ["172.31.255.255"],
  ["192.0.0.8"],
  ["192.0.2.1"],
  ["192.88.99.1"],
  ["192.168.1.1"],
  ["198.18.0.1"],
  ["198.19.255.255"],
  ["224.0.0.1"],
  ["239.255.255.250"],
  ["240.0.0.1"],
  ["255.255.255.255"],
  ["::"],
  ["::1"],
  ["::127.0.0.1"],
  ["::ffff:127.0.0.1"],
  ["::ffff:7f00:1"],
  ["::ffff:a9fe:a9fe"],
  ["0:0:0:0:0:ffff:10.0.0.1"],
  ["64:ff9b::a00:1"],
  ["64:ff9b::169.254.169.254"],
  ["64:ff9b:1::1"],
  ["100::1"],
  ["2001::1"],
  ["2001:db8::1"],
  ["2002:7f00:1::"],
  ["3fff::1"],
  ["fc00::1"],
  ["fd12:3456::1"],
  ["fe80::1"],
  ["fe80::1%eth0"],
  ["fec0::1"],
  ["ff02::1"],
  [""],
  ["localhost"],
  ["127.1"],
  ["0x7f000001"],
  ["2130706433"],
  ["1.1.1.1/8"],
])("%s is not public", ([address]) => {
  expect(isPublicAddress(address as string)).toBe(false);
});

test.for([
  ["1.1.1.1"],
  ["9.255.255.255"],
  ["11.0.0.0"],
  ["100.63.255.255"],
  ["100.128.0.0"],
  ["172.15.255.255"],
  ["172.32.0.0"],
  ["192.167.255.255"],
  ["198.17.255.255"],
  ["198.20.0.0"],
  ["223.255.255.255"],
  ["2606:4700:4700::1111"],
  ["2a00:1450:4001::1"],
  ["::ffff:1.1.1.1"],
  ["64:ff9b::101:101"],
])("%s is public", ([address]) => {
  expect(isPublicAddress(address as string)).toBe(true);
});

test("what an open machine may not reach, no name leads to either", () => {
  const bytes = (range: string) => (range.split("/")[0] as string).split(".").map(Number);
  for (const range of REFUSED_RANGES) {
    const [a = 0, b = 0, c = 0] = bytes(range);
    expect([range, isPublicAddress(`${a}.${b}.${c}.9`)]).toEqual([range, false]);
  }
});

test("an IPv4 address is judged alike in every dress", () => {
  fc.assert(
    fc.property(fc.ipV4(), (address) => {
      const words = Buffer.from(address.split(".").map(Number));
      const hex = `${words.readUInt16BE(0).toString(16)}:${words.readUInt16BE(2).toString(16)}`;
      const judged = isPublicAddress(address);
      for (const dress of [
        `::ffff:${address}`,
        `::ffff:${hex}`,
        `0:0:0:0:0:ffff:${hex}`,
        `64:ff9b::${hex}`,
      ]) {
        expect([dress, isPublicAddress(dress)]).toEqual([dress, judged]);
      }
    }),
  );
});

test("no text whatever is public that is no address", () => {
  fc.assert(fc.property(fc.string(), (text) => !isPublicAddress(text) || /^[\d.]+$|:/.test(text)));
});

test("a setting opens addresses and ranges, and nothing beside them", () => {
  const ranges = rangesOf([
    "10.1.0.0/16",
    "192.168.1.5",
    "fd00::/8",
    "a.host.test",
    "10.0.0.0/33",
    "1.2.3.4/x",
  ]);
  expect(["10.1.2.3", "192.168.1.5", "fd12::1"].map((address) => isWithin(ranges, address))).toEqual([
    true,
    true,
    true,
  ]);
  expect(
    ["10.2.0.0", "192.168.1.6", "fe80::1", "a.host.test", "1.2.3.4"].map((it) => isWithin(ranges, it)),
  ).toEqual([false, false, false, false, false]);
  expect(parseRange("0.0.0.0/0")).toEqual({ network: "0.0.0.0", prefixLength: 0 });
});

test("the host's own addresses are known", () => {
  expect(ownAddresses()).toContain("127.0.0.1");
});
