import { expect, test } from "vitest";
import { hostFacts, isMet, measuredPart, table, withMeasured } from "./report.ts";

const rows = [
  { bench: "warm", what: "create, p50", value: 41.26, unit: "ms", bar: { atMost: 60 }, note: "n=100" },
  { bench: "files", what: "read", value: 93.1, unit: "MB/s", bar: { atLeast: 100 } },
  { bench: "idle", what: "CPU", value: 0.5, unit: "%" },
];

test("judges a figure with a target as met or missed, and does not judge a figure without a target", () => {
  expect(rows.map(isMet)).toEqual([true, false, undefined]);
});

test("prints each figure with its unit, its target and the verdict", () => {
  expect(table(rows).split("\n").slice(2)).toEqual([
    "| warm | create, p50 | 41.3 ms | ≤ 60 ms ✓ | n=100 |",
    "| files | read | 93.1 MB/s | ≥ 100 MB/s ✗ |  |",
    "| idle | CPU | 0.500 % |  |  |",
  ]);
});

test("reads the host's facts from the last start in the server's log", () => {
  const line = (driver: string) =>
    JSON.stringify({ driver, cgroup: "v2", runtimeBuild: "1.2", msg: "host registered" });
  const facts = hostFacts(`${line("old")}\n{"msg":"else"}\n${line("gvisor (systrap)")}\n`);
  expect(facts).toMatchObject({
    driver: "gvisor (systrap)",
    cgroup: "v2",
    runsc: "1.2",
    node: process.version,
  });
});

test("replaces only the text between the markers of the document", () => {
  const document = "# A\n<!-- measured -->\nold\n<!-- /measured -->\ntail\n";
  expect(withMeasured(document, "new")).toBe("# A\n<!-- measured -->\nnew\n<!-- /measured -->\ntail\n");
  expect(() => withMeasured("# A\n", "new")).toThrow("lacks");
});

test("puts the date and the machine on the first line of the measured part", () => {
  const host = { ...hostFacts(""), cpu: "X", cores: 2, memoryBytes: 2 ** 34, kernel: "6.1", node: "v24" };
  const text = measuredPart(new Date("2030-02-03T04:05:06Z"), host, rows);
  expect(text.split("\n")[0]).toBe(
    "2030-02-03 on X, 2 cores, 16 GiB, Linux 6.1, cgroup unknown; unknown, runsc unknown, Node v24.",
  );
});
