/**
 * `kontor bench [names…]` runs every `.bench.ts` below `bench/`, each a module that exports `name` and `run(context)`.
 * The benchmarks share one server with its own data directory and port. The command writes the figures with the facts
 * of the host.
 */
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, globSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { Failure } from "../../lib/failure.ts";
import { inProduct } from "../../lib/places.ts";
import { startStep } from "../../lib/steps-view.ts";
import { freePort } from "../../serve/port.ts";
import { logFile, readOperator } from "../../serve/server-file.ts";
import { startServer, stopServer, waitForTemplate, waitUntilReady } from "../../serve/start.ts";
import { aptStep } from "../../setup/apt.ts";
import { nativeStep } from "../../setup/native.ts";
import { serverPackages } from "../../setup/packages.ts";
import { setUp } from "../../setup/setup.ts";
import type { Bench, BenchContext } from "../../../../bench/support/contract.ts";
import { removeHostTraces } from "../../../../e2e/support/clean.ts";
import { hostFacts, isMet, measuredPart, table, withMeasured, type MeasuredRow } from "../../bench/report.ts";

export async function bench(names: readonly string[]): Promise<void> {
  await setUp([aptStep(serverPackages), nativeStep]);
  const benches = await loadBenches(names);
  const data = process.env["KONTOR_DATA_DIR"] ?? mkdtempSync(path.join(tmpdir(), "kontor-bench-"));
  // mkdtemp creates a directory of mode 0700, which PostgreSQL's account could not enter.
  chmodSync(data, 0o711);
  const throwaway = process.env["KONTOR_DATA_DIR"] === undefined;
  try {
    const rows = await measure(benches, data);
    const isWhole = names.length === 0 && process.exitCode === undefined;
    const files = write(rows, data, { isWhole }).map((file) => path.relative(process.cwd(), file));
    process.stdout.write(`${table(rows)}\nWritten to ${files.join(" and ")}\n`);
    if (rows.some((row) => isMet(row) === false)) process.exitCode = 1;
  } finally {
    if (throwaway) {
      await removeHostTraces(data);
      rmSync(data, { recursive: true, force: true });
    }
  }
}

async function loadBenches(names: readonly string[]): Promise<Bench[]> {
  const files = globSync("*/*.bench.ts", { cwd: inProduct("bench") });
  const all = await Promise.all(
    files.toSorted().map((file) => import(pathToFileURL(inProduct("bench", file)).href) as Promise<Bench>),
  );
  const chosen = names.length === 0 ? all : all.filter(({ name }) => names.includes(name));
  if (chosen.length === 0)
    throw new Failure(
      `There is no such benchmark. There are: ${all.map(({ name }) => name).join(", ") || "none"}`,
    );
  return chosen;
}

async function measure(benches: readonly Bench[], data: string): Promise<MeasuredRow[]> {
  // Without this setting, the other templates would be made in the background and distort the figures.
  process.env["KONTOR_PREPARE_TEMPLATES"] ??= "debian-12";
  process.env["KONTOR_TLS_PORT"] ??= "0";
  const view = startStep("Server for the benchmarks");
  const started = startServer(data, await freePort());
  const rows: MeasuredRow[] = [];
  try {
    const server = await waitUntilReady(started, data, view);
    await waitForTemplate(server.base_url, "debian-12", view);
    view.done(server.base_url);
    const token = readOperator(data)?.token ?? "";
    for (const one of benches) {
      const step = startStep(one.name);
      const context: BenchContext = {
        baseUrl: server.base_url,
        token,
        dataDirectory: data,
        serverPid: server.pid,
        report: (row) => rows.push({ bench: one.name, ...row }),
        progress: (text, fraction) => step.update(text, fraction),
      };
      try {
        await one.run(context);
        step.done();
      } catch (error) {
        // The remaining benchmarks still run.
        step.fail((error as Error).message);
        process.exitCode = 1;
      }
    }
  } finally {
    await stopServer(started.process.pid, 60_000).catch(() => {});
  }
  return rows;
}

/**
 * Writes the figures with the facts of the host as JSON. A complete run without a failure also updates the
 * documentation.
 */
function write(rows: readonly MeasuredRow[], data: string, { isWhole }: { isWhole: boolean }): string[] {
  const at = new Date();
  const host = hostFacts(readFileSync(logFile(data), "utf8"));
  const results = inProduct("bench", "results", "latest.json");
  mkdirSync(path.dirname(results), { recursive: true });
  writeFileSync(results, `${JSON.stringify({ at, host, rows }, null, 2)}\n`);
  if (!isWhole) return [results];
  const document = inProduct("docs", "benchmarks.md");
  writeFileSync(document, withMeasured(readFileSync(document, "utf8"), measuredPart(at, host, rows)));
  return [results, document];
}
