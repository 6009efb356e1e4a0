import { expect, test } from "vitest";
import { parseAudit, parseOsRelease, parseUpgrades } from "./scan.ts";

test("counts the security fixes of apt's plan, and nothing else", () => {
  const output = `Reading package lists...
Inst libc6 [2.36-9+deb12u4] (2.36-9+deb12u10 Debian:12.9/oldstable [amd64])
Inst openssl [3.0.15-1~deb12u1] (3.0.17-1~deb12u2 Debian-Security:12/oldstable-security [amd64])
Inst nginx [1.26.3-3] (1.26.3-3 Debian-Security:13/stable-security [amd64])
Inst libnew (1.0 Debian-Security:12/oldstable-security [amd64])
Conf openssl (3.0.17-1~deb12u2 Debian-Security:12/oldstable-security [amd64])
`;
  expect(parseUpgrades(output)).toEqual([
    expect.objectContaining({
      id: "openssl@3.0.17-1~deb12u2",
      package: "openssl",
      installed: "3.0.15-1~deb12u1",
      fixedIn: "3.0.17-1~deb12u2",
      severity: "unknown",
    }),
  ]);
});

test("reads the suite of an image, and ignores an invalid name", () => {
  expect(parseOsRelease('PRETTY_NAME="Debian"\nID=debian\nVERSION_CODENAME=bookworm\n')).toEqual({
    id: "debian",
    codename: "bookworm",
  });
  expect(parseOsRelease("ID=debian\nVERSION_CODENAME=../../etc\n")).toEqual({ id: "debian", codename: null });
});

test("returns each advisory of npm's report once", () => {
  const via = [
    {
      title: "ReDoS",
      url: "https://example.test/advisories/GHSA-aaaa-bbbb-cccc",
      severity: "high",
      range: "<2",
    },
    "other",
  ];
  expect(
    parseAudit(JSON.stringify({ vulnerabilities: { ms: { via, range: "<2" }, other: { via: ["ms"] } } })),
  ).toEqual([
    {
      id: "GHSA-aaaa-bbbb-cccc",
      package: "ms",
      installed: "<2",
      fixedIn: null,
      severity: "high",
      title: "ReDoS",
      source: "npm-audit",
    },
  ]);
});

test("rejects the reply of a registry without a report", () => {
  expect(() => parseAudit('{"message":"405 Method Not Allowed","method":"POST"}')).toThrow("405");
  expect(() => parseAudit('{"message":"405 Not Allowed","error":{"summary":""}}')).toThrow("405");
  expect(() => parseAudit('{"error":{"summary":"audit endpoint returned an error"}}')).toThrow("endpoint");
});
