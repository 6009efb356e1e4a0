import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { inProduct } from "../lib/places.ts";
import {
  addUp,
  afterRepeat,
  closing,
  repeatFailures,
  runLanes,
  tallyOf,
  type VitestReport,
} from "./run-suites.ts";

function report(over: Partial<VitestReport>): VitestReport {
  return {
    numPassedTests: 0,
    numFailedTests: 0,
    numPendingTests: 0,
    numTodoTests: 0,
    testResults: [],
    ...over,
  };
}

const failing = {
  name: inProduct("server/src/x.test.ts"),
  status: "failed",
  assertionResults: [
    { status: "passed", fullName: "a" },
    { status: "failed", fullName: "keeps its promise", failureMessages: ["Error: late\nat x"] },
  ],
};

test("lists a failed test together with its file", () => {
  const tally = tallyOf(report({ numPassedTests: 1, numFailedTests: 1, testResults: [failing] }), 1, "units");
  expect(tally).toEqual({
    passed: 1,
    failed: 1,
    skipped: 0,
    failures: [
      {
        label: "server/src/x.test.ts: keeps its promise",
        cause: "Error: late",
        file: "server/src/x.test.ts",
      },
    ],
    passedBeside: { "server/src/x.test.ts": 1 },
    retried: [],
  });
});

test("counts a test file that does not load as a failure", () => {
  const broken = {
    name: inProduct("cli/src/y.test.ts"),
    status: "failed",
    message: "SyntaxError: no\nat",
    assertionResults: [],
  };
  expect(tallyOf(report({ testResults: [broken] }), 1, "units").failures).toEqual([
    { label: "cli/src/y.test.ts: SyntaxError: no", cause: "SyntaxError: no", file: "cli/src/y.test.ts" },
  ]);
});

test("counts a runner that exits with an error but reports no failed test, or reports nothing, as a failure", () => {
  expect(tallyOf(report({ numPassedTests: 3 }), 1, "units").failed).toBe(1);
  expect(tallyOf(undefined, 134, "units").failed).toBe(1);
});

test("prints only the totals on the last line", () => {
  const sum = addUp([
    { passed: 2, failed: 0, skipped: 1, failures: [], passedBeside: {}, retried: [] },
    {
      passed: 3,
      failed: 1,
      skipped: 0,
      failures: [{ label: "lint", cause: "" }],
      passedBeside: {},
      retried: [],
    },
  ]);
  expect(closing(sum)).toBe("\nFailed:\n  ✗ lint\n\n5 passed, 1 failed, 1 skipped\n");
});

test("lists a test that passed at its second attempt, with the error of the first", () => {
  const results = [{ status: "passed", fullName: "keeps it", failureMessages: ["Error: late\nat x"] }];
  const file = { name: inProduct("e2e/z.test.ts"), status: "passed", assertionResults: results };
  const tally = tallyOf(report({ numPassedTests: 1, testResults: [file] }), 0, "end to end");
  expect(tally).toMatchObject({ passed: 1, failed: 0, retried: ["e2e/z.test.ts: keeps it (Error: late)"] });
  expect(closing(tally)).toContain("↻ e2e/z.test.ts: keeps it (Error: late)\n\n1 passed, 0 failed");
});

test("counts a failed test as retried when the second run of its file passes", () => {
  const first = tallyOf(report({ numPassedTests: 6, numFailedTests: 1, testResults: [failing] }), 1, "units");
  const passing = {
    ...failing,
    status: "passed",
    assertionResults: failing.assertionResults.map(({ fullName }) => ({ status: "passed", fullName })),
  };
  const second = tallyOf(report({ numPassedTests: 2, testResults: [passing] }), 0, "units");
  expect(afterRepeat(first, second)).toEqual({
    passed: 7,
    failed: 0,
    skipped: 0,
    failures: [],
    passedBeside: {},
    retried: ["server/src/x.test.ts: keeps its promise (in a second run of its file; Error: late)"],
  });
});

test("keeps a failure that the second run of its file repeats, and adds a new failure", () => {
  const first = tallyOf(report({ numPassedTests: 6, numFailedTests: 1, testResults: [failing] }), 1, "units");
  const worse = {
    ...failing,
    assertionResults: failing.assertionResults.map((t) => ({ ...t, status: "failed" })),
  };
  const second = tallyOf(report({ numFailedTests: 2, testResults: [worse] }), 1, "units");
  const tally = afterRepeat(first, second);
  expect(tally).toMatchObject({ passed: 5, failed: 2, retried: [] });
  expect(tally.failures.map(({ label }) => label)).toEqual([
    "server/src/x.test.ts: a",
    "server/src/x.test.ts: keeps its promise",
  ]);
});

test("runs a suite's failed files once more, but none if too many failed", async () => {
  const written = vi.spyOn(process.stdout, "write").mockReturnValue(true);
  onTestFinished(() => written.mockRestore());
  const suite = { name: "units", run: { projects: ["cli"], serial: false } };
  const failedTally = (file: string) => ({
    ...tallyOf(undefined, 1, "units"),
    failures: [{ label: `${file}: a`, cause: "Error: late", file }],
  });
  const [again] = await repeatFailures([{ suite, tally: failedTally("cli/src/lib/steps-view.test.ts") }]);
  expect(again).toMatchObject({
    failed: 0,
    retried: [expect.stringContaining("steps-view.test.ts: a (in a second run")],
  });
  expect(again?.passed).toBeGreaterThan(0);
  const many = Array.from({ length: 13 }, (_, n) => ({ suite, tally: failedTally(`cli/src/f${n}.test.ts`) }));
  expect(addUp(await repeatFailures(many))).toMatchObject({ failed: 13, retried: [] });
}, 60_000);

test("runs lanes in parallel, prefixes each line with its suite, and adds up the counts", async () => {
  const folder = mkdtempSync(join(tmpdir(), "kontor-lanes-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const written = vi.spyOn(process.stdout, "write").mockReturnValue(true);
  onTestFinished(() => written.mockRestore());
  // Each suite waits for the other, so neither ends if they run in sequence.
  const meet = (own: string, other: string): [string, ...string[]] => [
    process.execPath,
    "-e",
    `fs.writeFileSync(${JSON.stringify(join(folder, own))}, "");
     const seen = setInterval(() => {
       if (!fs.existsSync(${JSON.stringify(join(folder, other))})) return;
       clearInterval(seen);
       console.log("${own} met ${other}");
     }, 10);
     setTimeout(() => process.exit(1), 20_000).unref();`,
  ];
  const results = await runLanes([
    [{ name: "left", run: { argv: meet("l", "r") } }],
    [
      { name: "right", run: { argv: meet("r", "l") } },
      { name: "broken", run: { argv: [process.execPath, "-e", "process.exit(3)"] } },
    ],
  ]);
  expect(addUp(results.map(({ tally }) => tally))).toMatchObject({
    passed: 2,
    failed: 1,
    failures: [{ label: "broken" }],
  });
  const lines = written.mock.calls.map(([line]) => line);
  expect(lines).toContain("left │ l met r\n");
  expect(lines).toContain("right │ r met l\n");
});

test("kills a leftover process of a suite that keeps the output open, and does not wait for it", async () => {
  const written = vi.spyOn(process.stdout, "write").mockReturnValue(true);
  onTestFinished(() => written.mockRestore());
  const leave = `const left = child_process.spawn("sleep", ["3600"], { detached: true, stdio: "inherit" });
    console.log("left", left.pid);
    left.unref();`;
  const [result] = await runLanes([[{ name: "careless", run: { argv: [process.execPath, "-e", leave] } }]]);
  expect(result?.tally).toMatchObject({ passed: 1, failed: 0 });
  const lines = written.mock.calls.map(([line]) => String(line));
  const pid = Number(lines.map((line) => /left ([0-9]+)/.exec(line)?.[1]).find(Boolean));
  expect(lines).toContainEqual(expect.stringContaining(`a test left process ${pid} running`));
  await expect.poll(() => existsSync(`/proc/${pid}`)).toBe(false);
});
