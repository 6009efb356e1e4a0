/** Formats benchmark figures as a table, with the facts of the host at the time of the run. */
import { cpus, release, totalmem } from "node:os";
import type { BenchRow } from "../../../bench/support/contract.ts";

export interface MeasuredRow extends BenchRow {
  bench: string;
}

export interface HostFacts {
  kernel: string;
  cpu: string;
  cores: number;
  memoryBytes: number;
  cgroup: string;
  /** gVisor's version and platform. */
  driver: string;
  runsc: string;
  node: string;
}

export function isMet({ value, bar }: BenchRow): boolean | undefined {
  if (!bar) return undefined;
  return "atMost" in bar ? value <= bar.atMost : value >= bar.atLeast;
}

/** Returns a Markdown table in the form of docs/benchmarks.md. */
export function table(rows: readonly MeasuredRow[]): string {
  const lines = rows.map((row) => {
    const met = isMet(row);
    const mark = met === undefined ? "" : met ? "✓" : "✗";
    return `| ${row.bench} | ${row.what} | ${round(row.value)} ${row.unit} | ${`${barText(row)} ${mark}`.trim()} | ${row.note ?? ""} |`;
  });
  return ["| Benchmark | Figure | Measured | Bar | Note |", "| --- | --- | --- | --- | --- |", ...lines].join(
    "\n",
  );
}

/** Reads driver, runtime and control groups from the log of the server. */
export function hostFacts(serverLog: string): HostFacts {
  const cores = cpus();
  const registered = serverLog.split("\n").findLast((line) => line.includes('"host registered"'));
  const said = registered === undefined ? {} : (JSON.parse(registered) as Record<string, string | undefined>);
  return {
    kernel: release(),
    cpu: cores[0]?.model ?? "unknown",
    cores: cores.length,
    memoryBytes: totalmem(),
    cgroup: said["cgroup"] ?? "unknown",
    driver: said["driver"] ?? "unknown",
    runsc: said["runtimeBuild"] ?? "unknown",
    node: process.version,
  };
}

/** Returns the measured part of docs/benchmarks.md, between its two markers. */
export function measuredPart(at: Date, host: HostFacts, rows: readonly MeasuredRow[]): string {
  const { cpu, cores, memoryBytes, kernel, cgroup, driver, runsc, node } = host;
  const memory = `${(memoryBytes / 2 ** 30).toFixed(0)} GiB`;
  const machine = `${cpu}, ${cores} cores, ${memory}, Linux ${kernel}, cgroup ${cgroup}`;
  return `${at.toISOString().slice(0, 10)} on ${machine}; ${driver}, runsc ${runsc}, Node ${node}.\n\n${table(rows)}`;
}

const markers = ["<!-- measured -->\n", "\n<!-- /measured -->"] as const;

/** Replaces the measured part of the document. */
export function withMeasured(document: string, part: string): string {
  const [begin, end] = markers;
  const [from, to] = [document.indexOf(begin), document.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`the document lacks ${begin.trim()} … ${end.trim()}`);
  return document.slice(0, from + begin.length) + part + document.slice(to);
}

function barText({ bar, unit }: BenchRow): string {
  if (!bar) return "";
  return "atMost" in bar ? `≤ ${bar.atMost} ${unit}` : `≥ ${bar.atLeast} ${unit}`;
}

function round(value: number): string {
  if (Number.isInteger(value)) return String(value);
  return value >= 100 ? value.toFixed(0) : value.toPrecision(3);
}
