import fc from "fast-check";
import { expect, test } from "vitest";
import {
  isAllowed,
  isKnown,
  looksLikeAddress,
  parseAuthority,
  parseEntries,
  parseEntry,
  parseHostName,
} from "./allowlist.ts";

const entries = parseEntries(["web.test", "*.Cdn.Test.", "registry.test:8443", "nonsense/path", "10.0.0.1"]);

test("matches an entry's host only, in any case, with or without the final dot", () => {
  expect(isAllowed(entries, "web.test", 443)).toBe(true);
  for (const name of ["sub.web.test", "evilweb.test", "web.test.evil.test", "test", "web.tes"]) {
    expect([name, isAllowed(entries, name, 443)]).toEqual([name, false]);
  }
  expect(parseHostName("WEB.test.")).toBe("web.test");
});

test("matches every name below a wildcard, at any depth, but not the name itself", () => {
  expect(["a.cdn.test", "b.a.cdn.test"].map((name) => isAllowed(entries, name, 443))).toEqual([true, true]);
  expect(
    ["cdn.test", "evilcdn.test", "cdn.test.evil.test"].map((name) => isAllowed(entries, name, 443)),
  ).toEqual([false, false, false]);
});

test("opens ports 443 and 80 for an entry without a port, and only the given port otherwise", () => {
  expect([443, 80, 22, 8443].map((port) => isAllowed(entries, "web.test", port))).toEqual([
    true,
    true,
    false,
    false,
  ]);
  expect([443, 80, 8443].map((port) => isAllowed(entries, "registry.test", port))).toEqual([
    false,
    false,
    true,
  ]);
  expect(isKnown(entries, "registry.test")).toBe(true);
});

test("rejects addresses, schemes, paths, bad ports and inner wildcards as entries", () => {
  for (const text of [
    "",
    "10.0.0.1",
    "127.1",
    "[::1]",
    "https://a.test",
    "a.test/x",
    "a.test:0",
    "a.test:70000",
  ]) {
    expect([text, parseEntry(text)]).toEqual([text, undefined]);
  }
  for (const text of [
    "*",
    "*.",
    "a.*.test",
    "*a.test",
    "-a.test",
    "a..test",
    "a b.test",
    `${"a".repeat(64)}.test`,
  ]) {
    expect([text, parseEntry(text)]).toEqual([text, undefined]);
  }
});

test("recognises an address in every spelling that a C library accepts", () => {
  for (const text of [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0X7F.1",
    "0177.0.0.01",
    "[::1]",
    "::1",
    "1.2.3.4.",
  ]) {
    expect([text, looksLikeAddress(text), parseHostName(text)]).toEqual([text, true, undefined]);
  }
  expect(looksLikeAddress("1.web.test")).toBe(false);
});

test("parses an authority only as an unambiguous host and port", () => {
  expect(parseAuthority("web.test:443")).toEqual({ host: "web.test", port: 443 });
  expect(parseAuthority("web.test", 80)).toEqual({ host: "web.test", port: 80 });
  expect(parseAuthority("[::1]:443")).toEqual({ host: "[::1]", port: 443 });
  for (const text of [
    "web.test",
    "u@web.test:443",
    "web.test:443/x",
    "web.test:",
    ":443",
    "a:1:2",
    "a\\b:443",
    "a b:443",
  ]) {
    expect([text, parseAuthority(text)]).toEqual([text, undefined]);
  }
});

test("allows only names that end in an allowed name", () => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      const name = parseHostName(text);
      if (name === undefined || !isKnown(entries, name)) return true;
      return name === "web.test" || name === "registry.test" || name.endsWith(".cdn.test");
    }),
  );
});
