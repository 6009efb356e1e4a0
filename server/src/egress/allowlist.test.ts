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

test("an entry means that host alone, in any case, with or without the last dot", () => {
  expect(isAllowed(entries, "web.test", 443)).toBe(true);
  for (const name of ["sub.web.test", "evilweb.test", "web.test.evil.test", "test", "web.tes"]) {
    expect([name, isAllowed(entries, name, 443)]).toEqual([name, false]);
  }
  expect(parseHostName("WEB.test.")).toBe("web.test");
});

test("a star means every name below, at any depth, and not the name itself", () => {
  expect(["a.cdn.test", "b.a.cdn.test"].map((name) => isAllowed(entries, name, 443))).toEqual([true, true]);
  expect(
    ["cdn.test", "evilcdn.test", "cdn.test.evil.test"].map((name) => isAllowed(entries, name, 443)),
  ).toEqual([false, false, false]);
});

test("without a port an entry opens 443 and 80, with one that port alone", () => {
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

test("what is no host name is no entry: addresses, schemes, paths, bad ports, a star in the middle", () => {
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

test("an address is known in every spelling that a C library takes for one", () => {
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

test("an authority is a host and a port, and nothing that could be read in two ways", () => {
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

test("whatever is allowed ends in an allowed name", () => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      const name = parseHostName(text);
      if (name === undefined || !isKnown(entries, name)) return true;
      return name === "web.test" || name === "registry.test" || name.endsWith(".cdn.test");
    }),
  );
});
