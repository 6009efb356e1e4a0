/** Runs suites one after the other or in lanes, on this terminal, and adds up what they counted. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import path from "node:path";
import { inProduct, productRoot } from "../lib/places.ts";
import { run as runPiped, runHere } from "../lib/run.ts";
import { seconds } from "../lib/steps-view.ts";
import type { Suite } from "./suites.ts";

export interface Tally {
  passed: number;
  failed: number;
  skipped: number;
  /** One line for each test that failed. */
  failures: string[];
  /** One line for each test that passed, but not at its first try. */
  retried: string[];
}

/** How a suite's command is run, and where is said how that went. */
interface Terminal {
  run(argv: readonly [string, ...string[]]): Promise<number>;
  say(line: string): void;
}

const whole: Terminal = {
  run: (argv) => runHere(argv, { cwd: productRoot }),
  say: (line) => process.stdout.write(`${line}\n`),
};

/** A terminal that others write on as well: whose line it is stands before each. */
function shared(name: string): Terminal {
  const say = (line: string) => process.stdout.write(`${name} │ ${line}\n`);
  const env = process.stdout.isTTY ? { ...process.env, FORCE_COLOR: "1" } : process.env;
  return {
    say,
    run: async (argv) => (await runPiped(argv, { cwd: productRoot, env, onLine: say })).code,
  };
}

export async function runSuites(suites: readonly Suite[]): Promise<Tally> {
  const tallies: Tally[] = [];
  for (const suite of suites) tallies.push(await runSuite(suite, whole));
  return addUp(tallies);
}

/** The suites of each lane one after the other, the lanes beside one another. */
export async function runLanes(lanes: readonly (readonly Suite[])[]): Promise<Tally> {
  // As in `runHere`: what Ctrl-C reaches are the suites, and they end in their own time.
  const ignore = (): void => {};
  process.on("SIGINT", ignore);
  try {
    return addUp(
      await Promise.all(
        lanes.map(async (lane) => {
          const tallies: Tally[] = [];
          for (const suite of lane) tallies.push(await runSuite(suite, shared(suite.name)));
          return addUp(tallies);
        }),
      ),
    );
  } finally {
    process.off("SIGINT", ignore);
  }
}

/**
 * The closing words: the failures by name, and last of all the one plain line with the sums that other programs read.
 */
export function closing({ passed, failed, skipped, failures, retried }: Tally): string {
  const list = (title: string, lines: readonly string[]): string =>
    lines.length > 0 ? `\n${title}:\n${lines.map((line) => `  ${line}\n`).join("")}` : "";
  const again = list(
    "Passed at the second try, which has a reason",
    retried.map((name) => `↻ ${name}`),
  );
  const names = list(
    "Failed",
    failures.map((name) => `✗ ${name}`),
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
    retried: tallies.flatMap(({ retried }) => retried),
  };
}

async function runSuite(suite: Suite, terminal: Terminal): Promise<Tally> {
  terminal.say(`── ${suite.name}`);
  const startedAt = Date.now();
  const tally = await count(suite, terminal);
  const { passed, failed } = tally;
  const counted = `${passed} passed${failed > 0 ? `, ${failed} failed` : ""}`;
  terminal.say(`${failed > 0 ? "✗" : "✓"} ${suite.name}: ${counted} (${seconds(Date.now() - startedAt)})`);
  return tally;
}

async function count({ name, run, repair }: Suite, terminal: Terminal): Promise<Tally> {
  if ("argv" in run) {
    const code = await terminal.run(run.argv);
    if (code === 0) return { passed: 1, failed: 0, skipped: 0, failures: [], retried: [] };
    return {
      passed: 0,
      failed: 1,
      skipped: 0,
      failures: [`${name}${repair ? ` (to repair it: ${repair})` : ""}`],
      retried: [],
    };
  }
  const folder = mkdtempSync(path.join(tmpdir(), "kontor-test-"));
  try {
    const report = path.join(folder, "report.json");
    const projects = run.projects.flatMap((project) => ["--project", project]);
    const code = await terminal.run([
      process.execPath,
      inProduct("node_modules/vitest/vitest.mjs"),
      "run",
      ...projects,
      // One worker a core, and two at least: vitest's own choice is one fewer, and half of what units do is wait.
      run.serial ? "--no-file-parallelism" : `--maxWorkers=${Math.max(2, availableParallelism())}`,
      "--passWithNoTests",
      "--silent=passed-only",
      "--reporter=default",
      "--reporter=json",
      `--outputFile.json=${report}`,
    ]);
    return tallyOf(readReport(report), code, name);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** The parts of vitest's JSON report that are read. */
export interface VitestReport {
  numPassedTests: number;
  numFailedTests: number;
  numPendingTests: number;
  numTodoTests: number;
  testResults: {
    name: string;
    status: string;
    message?: string;
    /** A test that passed has messages where an earlier try failed. */
    assertionResults: { status: string; fullName: string; failureMessages?: string[] }[];
  }[];
}

/** A file that does not load and a runner that ends badly count as one failed test each: nothing fails in silence. */
export function tallyOf(report: VitestReport | undefined, code: number, suite: string): Tally {
  if (!report)
    return {
      passed: 0,
      failed: 1,
      skipped: 0,
      failures: [`${suite}: vitest ended with ${code} and no report`],
      retried: [],
    };
  const failures = report.testResults.flatMap((file) => {
    const where = path.relative(productRoot, file.name);
    const failed = file.assertionResults.filter(({ status }) => status === "failed");
    if (failed.length > 0) return failed.map(({ fullName }) => `${where}: ${fullName.trim()}`);
    return file.status === "failed" ? [`${where}: ${file.message?.split("\n")[0] ?? "did not load"}`] : [];
  });
  if (failures.length === 0 && code !== 0)
    failures.push(`${suite}: vitest ended with ${code} though no test failed`);
  return {
    passed: report.numPassedTests,
    failed: failures.length,
    skipped: report.numPendingTests + report.numTodoTests,
    failures,
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

function readReport(file: string): VitestReport | undefined {
  try {
    return JSON.parse(readFileSync(file, "utf8")) as VitestReport;
  } catch {
    return undefined;
  }
}
