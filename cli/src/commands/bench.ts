/**
 * `kontor bench [names…]`: runs `bench/*.bench.ts`, each a module that exports `name` and `run(context)`, against one
 * server of its own (a data directory and a port that nobody uses), and writes the figures with the facts of the host.
 */
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { Failure } from "../lib/failure.ts";
import { inProduct } from "../lib/places.ts";
import { startStep } from "../lib/steps-view.ts";
import { freePort } from "../serve/port.ts";
import { readOperator } from "../serve/server-file.ts";
import { startServer, stopServer, waitForTemplate, waitUntilReady } from "../serve/start.ts";
import { aptStep } from "../setup/apt.ts";
import { nativeStep } from "../setup/native.ts";
import { serverPackages } from "../setup/packages.ts";
import { setUp } from "../setup/setup.ts";
import type { Bench, BenchContext } from "../../../bench/contract.ts";
import { removeHostTraces } from "../../../e2e/clean.ts";
import { hostFacts, isMet, table, type MeasuredRow } from "../bench/report.ts";

export async function bench(names: readonly string[]): Promise<void> {
  await setUp([aptStep(serverPackages), nativeStep]);
  const benches = await loadBenches(names);
  const data = process.env["KONTOR_DATA_DIR"] ?? mkdtempSync(path.join(tmpdir(), "kontor-bench-"));
  const throwaway = process.env["KONTOR_DATA_DIR"] === undefined;
  try {
    const rows = await measure(benches, data);
    const file = write(rows);
    process.stdout.write(`${table(rows)}\nWritten to ${path.relative(process.cwd(), file)}\n`);
    if (rows.some((row) => isMet(row) === false)) process.exitCode = 1;
  } finally {
    if (throwaway) {
      await removeHostTraces(data);
      rmSync(data, { recursive: true, force: true });
    }
  }
}

async function loadBenches(names: readonly string[]): Promise<Bench[]> {
  const files = readdirSync(inProduct("bench")).filter((file) => file.endsWith(".bench.ts"));
  const all = await Promise.all(
    files.map((file) => import(pathToFileURL(inProduct("bench", file)).href) as Promise<Bench>),
  );
  const chosen = names.length === 0 ? all : all.filter(({ name }) => names.includes(name));
  if (chosen.length === 0)
    throw new Failure(`No such benchmark. There are: ${all.map(({ name }) => name).join(", ") || "none"}`);
  return chosen;
}

async function measure(benches: readonly Bench[], data: string): Promise<MeasuredRow[]> {
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
      await one.run(context);
      step.done();
    }
  } finally {
    await stopServer(started.process.pid, 60_000).catch(() => {});
  }
  return rows;
}

function write(rows: readonly MeasuredRow[]): string {
  const folder = inProduct("bench", "results");
  mkdirSync(folder, { recursive: true });
  const file = path.join(folder, `${new Date().toISOString().replaceAll(/[:.]/g, "-")}.json`);
  writeFileSync(file, `${JSON.stringify({ at: new Date(), host: hostFacts(), rows }, null, 2)}\n`);
  return file;
}
