/**
 * What a benchmark is: a file `bench/<name>.bench.ts` that exports `name` and `run`. The runner (`kontor bench`) starts
 * one server on a data directory and a port of its own, waits for the first template, and runs them one by one.
 */

export interface Bench {
  name: string;
  run(context: BenchContext): Promise<void>;
}

export interface BenchContext {
  baseUrl: string;
  /** A full-access token of the operator. */
  token: string;
  dataDirectory: string;
  serverPid: number;
  report(row: BenchRow): void;
  /** What is being done, for the person who waits; `fraction` 0–1 where known. */
  progress(text: string, fraction?: number): void;
}

/** One figure. With a `bar` it is met or not, and `kontor bench` ends with 1 where one is not. */
export interface BenchRow {
  what: string;
  value: number;
  /** `ms`, `MB/s`, `req/s`, `%`, … */
  unit: string;
  /** Everything the value was taken from, for the file of results. */
  samples?: number[];
  bar?: { atMost: number } | { atLeast: number };
  note?: string;
}
