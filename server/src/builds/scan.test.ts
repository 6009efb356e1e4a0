import { expect, test } from "vitest";
import { describeScan } from "./scan.ts";

test("names an unavailable source in the text, and does not report it as a source without findings", () => {
  const npm = { source: "npm-audit", status: "unavailable" as const, detail: "405" };
  const debian = { source: "debian-security", status: "answered" as const, detail: null };
  expect(describeScan({ status: "partial", findings: [], sources: [debian, npm] })).toBe(
    "0 known vulnerabilities; npm-audit did not respond (405).",
  );
  expect(describeScan({ status: "unavailable", findings: [], sources: [npm] })).toBe(
    "No source has a result; npm-audit did not respond (405).",
  );
});
