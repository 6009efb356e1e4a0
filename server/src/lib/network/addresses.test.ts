import fc from "fast-check";
import { expect, test } from "vitest";
import { isPublicAddress, mayConnect, parseOpenedHosts } from "./addresses.ts";

const nothing = parseOpenedHosts([]);

test.each([
  "0.0.0.0",
  "10.0.0.1",
  "10.255.255.255",
  "100.64.0.1",
  "100.127.255.255",
  "127.0.0.1",
  "127.255.255.254",
  "169.254.169.254",
  "172.16.0.1",
  "172.31.255.255",
  "192.0.0.8",
  "192.0.2.1",
  "192.168.0.1",
  "198.18.0.1",
  "198.51.100.1",
  "203.0.113.1",
  "224.0.0.1",
  "240.0.0.1",
  "255.255.255.255",
  "::",
  "::1",
  "::ffff:127.0.0.1",
  "::ffff:93.184.216.34",
  "::127.0.0.1",
  "64:ff9b::a00:1",
  "100::1",
  "2001::1",
  "2001:db8::1",
  "2002:7f00:1::",
  "3fff::1",
  "fc00::1",
  "fd12:3456::1",
  "fe80::1",
  "fe80::1%eth0",
  "fec0::1",
  "ff02::1",
  "",
  "localhost",
  "127.1",
  "0x7f000001",
  "2130706433",
  "1.2.3.4.5",
])("refuses %s, which is not a public internet address", (address) => {
  expect(isPublicAddress(address)).toBe(false);
});

test.each([
  "1.1.1.1",
  "9.255.255.255",
  "11.0.0.0",
  "100.63.255.255",
  "100.128.0.0",
  "172.15.255.255",
  "172.32.0.0",
  "192.167.255.255",
  "192.169.0.0",
  "223.255.255.255",
  "2606:4700::1111",
  "2a00:1450:4001::1",
])("accepts the public address %s", (address) => {
  expect(isPublicAddress(address)).toBe(true);
});

test("refuses every IPv6 form that embeds an IPv4 address", () => {
  fc.assert(
    fc.property(fc.ipV4(), (inner) => {
      expect(isPublicAddress(`::ffff:${inner}`)).toBe(false);
      expect(isPublicAddress(`64:ff9b::${inner}`)).toBe(false);
    }),
  );
});

test("never throws, whatever text it checks", () => {
  fc.assert(fc.property(fc.string(), (text) => typeof mayConnect(nothing, text, text) === "boolean"));
});

test("allows connections only to the names, addresses and ranges that the operator opened", () => {
  const opened = parseOpenedHosts(["forge.lan", "192.168.1.7", "10.1.0.0/16", "fd00::/8"]);
  expect(mayConnect(opened, "FORGE.lan.", "192.168.9.9")).toBe(true);
  expect(mayConnect(opened, "x", "192.168.1.7")).toBe(true);
  expect(mayConnect(opened, "x", "10.1.255.1")).toBe(true);
  expect(mayConnect(opened, "x", "fd00::1")).toBe(true);
  expect(mayConnect(opened, "x", "1.1.1.1")).toBe(true);
  expect(mayConnect(opened, "sub.forge.lan", "192.168.9.9")).toBe(false);
  expect(mayConnect(opened, "x", "192.168.1.8")).toBe(false);
  expect(mayConnect(opened, "x", "10.2.0.1")).toBe(false);
  expect(mayConnect(opened, "forge.lan", "no address")).toBe(false);
});

test.each(["10.0.0.0/33", "10.0.0", "fd00::/129", "a b", "10.0.0.0/8/8", "http://x", "*.lan", ""])(
  "rejects the malformed entry %j",
  (entry) => {
    expect(() => parseOpenedHosts([entry])).toThrow(RangeError);
  },
);
