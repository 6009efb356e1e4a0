import { expect, test } from "vitest";
import { clientAddress, trustedProxies } from "./client-address.ts";

const isTrusted = trustedProxies(["10.0.0.0/8", "fd00::/8"]);
const from = (remoteAddress: string, forwarded?: string) =>
  clientAddress(
    { socket: { remoteAddress } as never, headers: forwarded ? { "x-forwarded-for": forwarded } : {} },
    isTrusted,
  );

test("ignores X-Forwarded-For from a peer that is not a trusted proxy", () => {
  expect(from("203.0.113.9", "198.51.100.7")).toBe("203.0.113.9");
  expect(from("::ffff:203.0.113.9")).toBe("203.0.113.9");
});

test("returns the rightmost untrusted address and ignores addresses before it", () => {
  expect(from("10.0.0.1", "198.51.100.7")).toBe("198.51.100.7");
  expect(from("::ffff:10.0.0.1", "6.6.6.6, 198.51.100.7, 10.2.2.2")).toBe("198.51.100.7");
  expect(from("fd00::1", "2001:db8::7")).toBe("2001:db8::7");
});

test("falls back to the proxy's own address when the header has no address", () => {
  expect(from("10.0.0.1")).toBe("10.0.0.1");
  expect(from("10.0.0.1", "unknown")).toBe("10.0.0.1");
  expect(from("10.0.0.1", "10.0.0.2")).toBe("10.0.0.2");
});
