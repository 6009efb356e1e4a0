import { expect, test } from "vitest";
import { describeScan } from "./scan.ts";

test("who could not be asked is said, and is not counted as having found nothing", () => {
  const npm = { source: "npm-audit", status: "unavailable" as const, detail: "405" };
  const debian = { source: "debian-security", status: "answered" as const, detail: null };
  expect(describeScan({ status: "partial", findings: [], sources: [debian, npm] })).toBe(
    "0 known faults; npm-audit did not answer (405).",
  );
  expect(describeScan({ status: "unavailable", findings: [], sources: [npm] })).toBe(
    "No source could say anything of it; npm-audit did not answer (405).",
  );
});
