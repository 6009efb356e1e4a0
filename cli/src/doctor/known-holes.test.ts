import { expect, test } from "vitest";
import { type Engine, holesOf, knownHoles, parseVersion } from "./known-holes.ts";

const names = (engine: Engine, version: string, changelog?: string) =>
  holesOf(engine, version, changelog)?.map(({ cve }) => cve);

const of2025 = ["CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"];

test.each<[Engine, string, string[]]>([
  ["runc", "1.1.5+ds1", ["CVE-2024-21626", "CVE-2024-45310", ...of2025, "CVE-2026-41579"]],
  ["runc", "1.1.12+ds1-2", ["CVE-2024-45310", ...of2025, "CVE-2026-41579"]],
  ["runc", "1.1.15+ds1-2+b4", [...of2025, "CVE-2026-41579"]],
  ["runc", "1.2.0-rc.2", ["CVE-2024-45310", ...of2025, "CVE-2026-41579"]],
  ["runc", "1.2.7", [...of2025, "CVE-2026-41579"]],
  ["runc", "1.2.8", ["CVE-2026-41579"]],
  ["runc", "1.3.2", [...of2025, "CVE-2026-41579"]],
  ["runc", "1.3.3+ds1-2", ["CVE-2026-41579"]],
  ["runc", "1.3.5", ["CVE-2026-41579"]],
  ["runc", "1.3.6", []],
  ["runc", "1.4.0-rc.2", [...of2025, "CVE-2026-41579"]],
  ["runc", "1.4.0~rc.3+ds1-1", ["CVE-2026-41579"]],
  ["runc", "1.4.0", ["CVE-2026-41579"]],
  ["runc", "v1.4.3", []],
  ["runc", "1.5.0-rc.2", ["CVE-2026-41579"]],
  ["runc", "1.5.3", []],
  ["runc", "1.10.0", []],
  [
    "buildah",
    "1.28.2+ds1-3+deb12u1+b3",
    ["CVE-2024-1753", "CVE-2024-9407", "CVE-2024-9675", "CVE-2024-9676", "CVE-2024-11218"],
  ],
  ["buildah", "1.29.3", ["CVE-2024-9407", "CVE-2024-9675", "CVE-2024-9676", "CVE-2024-11218"]],
  ["buildah", "1.36.0", ["CVE-2024-9407", "CVE-2024-9675", "CVE-2024-9676", "CVE-2024-11218"]],
  ["buildah", "1.37.4", ["CVE-2024-9675", "CVE-2024-9676", "CVE-2024-11218"]],
  ["buildah", "1.38.0", ["CVE-2024-11218"]],
  ["buildah", "1.39.3+ds1-1", []],
  ["runsc", "0.0~20240729.0", ["CVE-2025-2713", "CVE-2026-96812"]],
  ["runsc", "0.0~20240729.0-4~bpo12+2", ["CVE-2025-2713", "CVE-2026-96812"]],
  ["runsc", "release-20250319.0", ["CVE-2026-96812"]],
  ["runsc", "release-20260921.0", ["CVE-2026-96812"]],
  ["runsc", "release-20260928.0", []],
  ["runsc", "release-20261005.0-12-gabcdef", []],
])("lists for %s %s the vulnerabilities %j", (engine, version, expected) => {
  expect(names(engine, version)).toEqual(expected);
});

test("reads fixes that Debian backported from the changelog of the engine's package", () => {
  const changelog =
    "runc (1.1.5+ds1-1+deb12u1) bookworm-security; urgency=high\n\n  * CVE-2024-21626: several container breakouts\n";
  expect(names("runc", "1.1.5+ds1", changelog)).toEqual(["CVE-2024-45310", ...of2025, "CVE-2026-41579"]);
  expect(names("runc", "1.1.5+ds1", "CVE-2024-216260")).toContain("CVE-2024-21626");
});

test("returns no list for a version that cannot be parsed", () => {
  for (const text of ["", "VERSION_MISSING", "unknown", "1.2"]) expect(names("runc", text)).toBeUndefined();
  expect(names("runsc", "VERSION_MISSING")).toBeUndefined();
});

test("every row has a version that can be parsed, an https source and a reason", () => {
  for (const { engine, cve, fixed, source, why } of knownHoles) {
    expect(cve).toMatch(/^CVE-\d{4}-\d{4,}$/);
    expect(fixed.map((text) => parseVersion(engine, text))).not.toContain(undefined);
    expect(source).toMatch(/^https:\/\//);
    expect(why).toMatch(/\.$/);
  }
});
