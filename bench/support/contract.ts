/**
 * The interface of a benchmark: a file `bench/<name>.bench.ts` that exports `name` and `run`. The runner (`kontor
 * bench`) starts one server with its own data directory and port, waits for the first template, and runs the benchmarks
 * in sequence.
 */

export interface Bench {
  name: string;
  run(context: BenchContext): Promise<void>;
}

export interface BenchContext {
  baseUrl: string;
  /** Token of the operator with all scopes. */
  token: string;
  dataDirectory: string;
  serverPid: number;
  report(row: BenchRow): void;
  /** Shows the current step; `fraction` is from 0 to 1, if known. */
  progress(text: string, fraction?: number): void;
}

/**
 * A measured figure. With a `bar` the figure is met or missed, and `kontor bench` exits with 1 if a figure is missed.
 */
export interface BenchRow {
  what: string;
  value: number;
  /** Unit of the figure: `ms`, `MB/s`, `req/s`, `%`, … */
  unit: string;
  /** All samples behind the value, for the file of results. */
  samples?: number[];
  bar?: { atMost: number } | { atLeast: number };
  note?: string;
}
