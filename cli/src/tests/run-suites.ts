/** Runs suites in sequence or in parallel lanes on this terminal, and adds up their counts. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import path from "node:path";
import { inProduct, productRoot } from "../lib/places.ts";
import { run as runPiped, runHere } from "../lib/run.ts";
import { seconds } from "../lib/steps-view.ts";
import { createMark, endLeftovers } from "./leftovers.ts";
import type { Suite } from "./suites.ts";

interface TestFailure {
  /** File and title of the test, or the name of the suite. */
  label: string;
  /** First line of the error; empty if the suite reports no error. */
  cause: string;
  /** File to run again; absent for a suite that is one command. */
  file?: string;
}

export interface Tally {
  passed: number;
  failed: number;
  skipped: number;
  failures: TestFailure[];
  /** Number of passed tests in each file with failures. */
  passedBeside: Record<string, number>;
  /** A line for each test that failed at first and passed later. */
  retried: string[];
}

/** The terminal on which a suite's command runs and its progress is printed. */
interface Terminal {
  run(argv: readonly [string, ...string[]], env: NodeJS.ProcessEnv): Promise<number>;
  print(line: string): void;
}

/**
 * Deadline of a whole run in milliseconds: a suite that still runs is killed and counts as failed. CI stops at 90
 * minutes without naming the suite.
 */
const wholeRunMs = 75 * 60_000;

const timeLeft = (): number => Math.max(1_000, Math.ceil(wholeRunMs - process.uptime() * 1_000));

const whole: Terminal = {
  run: (argv, env) => runHere(argv, { cwd: productRoot, env, timeoutMs: timeLeft() }),
  print: (line) => process.stdout.write(`${line}\n`),
};

/** Returns a terminal that several suites share: each line starts with the suite's name. */
function shareTerminal(name: string): Terminal {
  const print = (line: string) => process.stdout.write(`${name} │ ${line}\n`);
  const color = process.stdout.isTTY ? { FORCE_COLOR: "1" } : {};
  return {
    print,
    run: async (argv, env) => {
      const options = { cwd: productRoot, env: { ...env, ...color }, onLine: print, timeoutMs: timeLeft() };
      return (await runPiped(argv, options)).code;
    },
  };
}

export interface SuiteResult {
  suite: Suite;
  tally: Tally;
}

export async function runSuites(suites: readonly Suite[]): Promise<SuiteResult[]> {
  const results: SuiteResult[] = [];
  for (const suite of suites) results.push({ suite, tally: await runSuite(suite, whole) });
  return results;
}

/** Runs the lanes in parallel, and the suites of each lane in sequence. */
export async function runLanes(lanes: readonly (readonly Suite[])[]): Promise<SuiteResult[]> {
  // Ctrl-C reaches the suites too, and they end by themselves, as in `runHere`.
  const ignore = (): void => {};
  process.on("SIGINT", ignore);
  try {
    const results = await Promise.all(
      lanes.map(async (lane) => {
        const ofLane: SuiteResult[] = [];
        for (const suite of lane)
          ofLane.push({ suite, tally: await runSuite(suite, shareTerminal(suite.name)) });
        return ofLane;
      }),
    );
    return results.flat();
  } finally {
    process.off("SIGINT", ignore);
  }
}

/**
 * Largest number of failed files that run again. More failed files have a common cause, and a second run would only
 * cost time.
 */
const maxRepeatedFiles = 12;

/**
 * Runs the failed files of each suite once more, one at a time, after all other suites have ended, when the host is
 * idle. A test that passes now is listed as retried, with its first error; a test that fails stays a failure.
 */
export async function repeatFailures(ran: readonly SuiteResult[]): Promise<Tally[]> {
  const failedFiles = ({ failures }: Tally) => [...new Set(failures.flatMap(({ file }) => file ?? []))];
  const total = ran.reduce((sum, { tally }) => sum + failedFiles(tally).length, 0);
  const tallies: Tally[] = [];
  for (const { suite, tally } of ran) {
    const files = failedFiles(tally);
    if (files.length === 0 || total > maxRepeatedFiles || "argv" in suite.run) tallies.push(tally);
    else tallies.push(afterRepeat(tally, await repeat(suite, files)));
  }
  return tallies;
}

async function repeat({ name, run }: Suite, files: string[]): Promise<Tally> {
  whole.print(`── ${name}, again: ${files.join(", ")}`);
  return await count({ name, run: { ...run, files, serial: true } as Suite["run"] }, whole);
}

/** Returns the tally of a suite after the second run of its failed files: a test failed if it failed again. */
export function afterRepeat(first: Tally, second: Tally): Tally {
  const repeated = first.failures.filter(({ file }) => file !== undefined);
  const failures = [...first.failures.filter(({ file }) => file === undefined), ...second.failures];
  const still = new Set(second.failures.map(({ label }) => label));
  const recovered = repeated.filter(({ label }) => !still.has(label));
  return {
    passed: first.passed - Object.values(first.passedBeside).reduce((sum, n) => sum + n, 0) + second.passed,
    failed: failures.length,
    skipped: first.skipped,
    failures,
    passedBeside: second.passedBeside,
    retried: [
      ...first.retried,
      ...recovered.map(({ label, cause }) => `${label} (in a second run of its file; ${cause})`),
    ],
  };
}

/** Returns the last lines of a run: the failures by name, then the line with the sums, which other programs read. */
export function closing({ passed, failed, skipped, failures, retried }: Tally): string {
  const list = (title: string, lines: readonly string[]): string =>
    lines.length > 0 ? `\n${title}:\n${lines.map((line) => `  ${line}\n`).join("")}` : "";
  const again = list(
    "Passed at the second try, which has a reason",
    retried.map((name) => `↻ ${name}`),
  );
  const names = list(
    "Failed",
    failures.map(({ label }) => `✗ ${label}`),
  );
  return `${again}${names}\n${passed} passed, ${failed} failed, ${skipped} skipped\n`;
}

export function addUp(tallies: readonly Tally[]): Tally {
  const sum = (key: "passed" | "failed" | "skipped"): number =>
    tallies.reduce((total, tally) => total + tally[key], 0);
  return {
    passed: sum("passed"),
    failed: sum("failed"),
    skipped: sum("skipped"),
    failures: tallies.flatMap(({ failures }) => failures),
    passedBeside: Object.assign({}, ...tallies.map(({ passedBeside }) => passedBeside)) as Record<
      string,
      number
    >,
    retried: tallies.flatMap(({ retried }) => retried),
  };
}

async function runSuite(suite: Suite, terminal: Terminal): Promise<Tally> {
  terminal.print(`── ${suite.name}`);
  const startedAt = Date.now();
  const tally = await count(suite, terminal);
  const { passed, failed } = tally;
  const counted = `${passed} passed${failed > 0 ? `, ${failed} failed` : ""}`;
  terminal.print(`${failed > 0 ? "✗" : "✓"} ${suite.name}: ${counted} (${seconds(Date.now() - startedAt)})`);
  return tally;
}

const nothing: Tally = { passed: 0, failed: 0, skipped: 0, failures: [], passedBeside: {}, retried: [] };

/** Returns the tally of a suite without a report, which counts as one failed test. */
const failedSuite = (label: string): Tally => ({ ...nothing, failed: 1, failures: [{ label, cause: "" }] });

async function count({ name, run, repair }: Suite, terminal: Terminal): Promise<Tally> {
  if ("argv" in run) {
    const code = await runMarked(run.argv, terminal);
    if (code === 0) return { ...nothing, passed: 1 };
    return failedSuite(`${name}${repair ? ` (to repair it: ${repair})` : ""}`);
  }
  const { files = [] } = run;
  const folder = mkdtempSync(path.join(tmpdir(), "kontor-test-"));
  try {
    const report = path.join(folder, "report.json");
    const projects = run.projects.flatMap((project) => ["--project", project]);
    const argv: [string, ...string[]] = [
      process.execPath,
      inProduct("node_modules/vitest/vitest.mjs"),
      "run",
      ...projects,
      ...files,
      // Vitest gets a worker for each core, and at least two. Unit tests wait half of their time, and vitest would
      // start one worker fewer.
      run.serial ? "--no-file-parallelism" : `--maxWorkers=${Math.max(2, availableParallelism())}`,
      ...(files.length > 0 ? [] : ["--passWithNoTests"]),
      "--silent=passed-only",
      "--reporter=default",
      "--reporter=json",
      `--outputFile.json=${report}`,
    ];
    const code = await runMarked(argv, terminal);
    return tallyOf(readReport(report), code, name);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Runs a command, then kills its orphans, which would keep this run's output open forever. */
async function runMarked(argv: readonly [string, ...string[]], terminal: Terminal): Promise<number> {
  const mark = createMark();
  const code = await terminal.run(argv, { ...process.env, ...mark });
  for (const { pid, command } of endLeftovers(mark)) {
    terminal.print(`· a test left process ${pid} running, which is ended: ${command}`);
  }
  return code;
}

/** The fields of vitest's JSON report that are read. */
export interface VitestReport {
  numPassedTests: number;
  numFailedTests: number;
  numPendingTests: number;
  numTodoTests: number;
  testResults: {
    name: string;
    status: string;
    message?: string;
    /** Tests of the file. A passed test has messages if an earlier try failed. */
    assertionResults: { status: string; fullName: string; failureMessages?: string[] }[];
  }[];
}

/**
 * Returns the counts of a report. A file that does not load, and a runner that fails, count as one failed test each, so
 * that no fault is hidden.
 */
export function tallyOf(report: VitestReport | undefined, code: number, suite: string): Tally {
  if (!report) return failedSuite(`${suite}: vitest ended with ${code} and no report`);
  const failures = report.testResults.flatMap((file): TestFailure[] => {
    const where = path.relative(productRoot, file.name);
    const failed = file.assertionResults.filter(({ status }) => status === "failed");
    if (failed.length > 0) {
      return failed.map(({ fullName, failureMessages: [why = ""] = [] }) => ({
        label: `${where}: ${fullName.trim()}`,
        cause: why.split("\n")[0] ?? "",
        file: where,
      }));
    }
    if (file.status !== "failed") return [];
    const cause = file.message?.split("\n")[0] ?? "did not load";
    return [{ label: `${where}: ${cause}`, cause, file: where }];
  });
  if (failures.length === 0 && code !== 0)
    failures.push({ label: `${suite}: vitest ended with ${code} though no test failed`, cause: "" });
  return {
    passed: report.numPassedTests,
    failed: failures.length,
    skipped: report.numPendingTests + report.numTodoTests,
    failures,
    passedBeside: Object.fromEntries(
      failures.flatMap(({ file }) => (file === undefined ? [] : [[file, passedIn(report, file)]])),
    ),
    retried: report.testResults.flatMap(({ name, assertionResults }) =>
      assertionResults
        .filter(({ status, failureMessages = [] }) => status === "passed" && failureMessages.length > 0)
        .map(({ fullName, failureMessages: [why = ""] = [] }) => {
          const where = path.relative(productRoot, name);
          return `${where}: ${fullName.trim()} (${why.split("\n")[0]})`;
        }),
    ),
  };
}

function passedIn(report: VitestReport, where: string): number {
  const file = report.testResults.find(({ name }) => path.relative(productRoot, name) === where);
  return file?.assertionResults.filter(({ status }) => status === "passed").length ?? 0;
}

function readReport(file: string): VitestReport | undefined {
  try {
    return JSON.parse(readFileSync(file, "utf8")) as VitestReport;
  } catch {
    return undefined;
  }
}
