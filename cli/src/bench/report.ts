/** Benchmark figures as a table for people, and what the host was like when they were taken. */
import { cpus, release, totalmem } from "node:os";
import type { BenchRow } from "../../../bench/contract.ts";

export interface MeasuredRow extends BenchRow {
  bench: string;
}

export function isMet({ value, bar }: BenchRow): boolean | undefined {
  if (!bar) return undefined;
  return "atMost" in bar ? value <= bar.atMost : value >= bar.atLeast;
}

/** A Markdown table, so that it can be pasted into docs/benchmarks.md as it is. */
export function table(rows: readonly MeasuredRow[]): string {
  const lines = rows.map((row) => {
    const met = isMet(row);
    const mark = met === undefined ? "" : met ? "✓" : "✗";
    return `| ${row.bench} | ${row.what} | ${round(row.value)} ${row.unit} | ${barText(row)} ${mark} | ${row.note ?? ""} |`;
  });
  return ["| Benchmark | What | Measured | Bar | Note |", "| --- | --- | --- | --- | --- |", ...lines].join(
    "\n",
  );
}

export function hostFacts(): Record<string, string | number> {
  const cores = cpus();
  return {
    kernel: release(),
    cpu: cores[0]?.model ?? "unknown",
    cores: cores.length,
    memoryBytes: totalmem(),
    node: process.version,
  };
}

function barText({ bar, unit }: BenchRow): string {
  if (!bar) return "";
  return "atMost" in bar ? `≤ ${bar.atMost} ${unit}` : `≥ ${bar.atLeast} ${unit}`;
}

function round(value: number): string {
  return value >= 100 ? value.toFixed(0) : value.toPrecision(3);
}
