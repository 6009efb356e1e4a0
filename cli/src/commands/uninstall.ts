/**
 * `kontor uninstall` removes an installation from its host: server, machines, network, files, and the settings of the
 * set-up. The command lists them first. Debian packages, backups in other directories and the product's own folder
 * stay.
 */
import { createInterface } from "node:readline/promises";
import type { Config } from "@kontor/server/config.ts";
import { stopEmbedded } from "@kontor/server/db/embedded/ensure-embedded.ts";
import { lockBackup } from "../backup/lock.ts";
import { Failure } from "../lib/failure.ts";
import { asRoot, isRoot, productRoot } from "../lib/places.ts";
import { run } from "../lib/run.ts";
import { startStep } from "../lib/steps-view.ts";
import { findRunning } from "../serve/server-file.ts";
import { serverPackages } from "../setup/packages.ts";
import { removeFiles, removeMachines, removeMounts, removeNetwork } from "../uninstall/remove.ts";
import { findTraces, type Traces } from "../uninstall/traces.ts";
import { readRunningConfig } from "./config.ts";
import { drain } from "./down.ts";

export interface UninstallOptions {
  data?: string;
  yes?: boolean;
  keepSettings?: boolean;
}

export async function uninstall(options: UninstallOptions): Promise<void> {
  if (!isRoot()) throw new Failure("Uninstalling needs root.", { hint: `Run: ${asRoot()}` });
  const config = readRunningConfig(options);
  const traces = findTraces(config, options);
  const running = findRunning(config.dataDir);
  process.stdout.write(describe(traces, running?.pid));
  process.stdout.write(await describeKept(traces));
  if (!options.yes) await confirm(config.dataDir, running?.pid);
  // A concurrent backup would read an incomplete installation.
  const release = lockBackup(config.dataDir);
  try {
    await remove(config, options, running?.pid);
  } catch (error) {
    release();
    throw error;
  }
  process.stdout.write(`Kontor is removed from ${config.dataDir}.\n`);
}

async function remove(config: Config, options: UninstallOptions, pid: number | undefined): Promise<void> {
  if (pid !== undefined) await drain(pid, config.dataDir, config.shutdownGraceSeconds);
  if ((await stopEmbedded(config.dataDir)).stopped) process.stdout.write("✓ Database stopped\n");
  // Machines are listed again, because the server may have started more of them.
  const traces = findTraces(config, options);
  const steps: readonly [string, () => Promise<unknown>][] = [
    ["Machines", () => removeMachines(traces)],
    ["Mounts", () => removeMounts(traces)],
    ["Network", () => removeNetwork(traces)],
    ["Files", () => removeFiles(traces)],
  ];
  for (const [title, act] of steps) {
    refuseStartedAgain(config.dataDir);
    const view = startStep(title);
    try {
      await act();
    } catch (error) {
      const { message } = error as Error;
      view.fail(message);
      if (error instanceof Failure) throw error;
      throw new Failure(`${title}: ${message}`, { hint: "Run this again: it continues." });
    }
    view.done();
  }
}

/** Throws if a server runs again: a service manager of the host restarts a server that it did not stop itself. */
function refuseStartedAgain(dataDir: string): void {
  const running = findRunning(dataDir);
  if (!running) return;
  throw new Failure(`The server was started again (pid ${running.pid}).`, {
    hint: "Stop and disable the service that starts it, and run this again.",
  });
}

function describe(traces: Traces, pid: number | undefined): string {
  const { dataDir, instance, directories, namespaces, settings } = traces;
  const lines = [
    `the data directory ${dataDir}, with its database, volumes, repositories, images and keys`,
    ...(pid === undefined ? [] : [`the running server (pid ${pid})`]),
    ...(instance === undefined
      ? []
      : [
          `every machine, its mounts, and the control groups kontor${instance}`,
          `the nft tables kontor${instance} and ${namespaces.length} network namespaces`,
        ]),
    ...directories,
    ...settings,
  ];
  return `Removes\n${lines.map((line) => `  ${line}\n`).join("")}`;
}

async function describeKept({ kept }: Traces): Promise<string> {
  const packages = await installedPackages();
  const lines = [
    ...kept,
    `this folder, ${productRoot}`,
    ...(packages.length === 0 ? [] : [`Debian packages: ${packages.join(" ")}`]),
    "kernel limits that the set-up raised, and forwarding on the uplink, until the host starts again",
  ];
  return `Keeps\n${lines.map((line) => `  ${line}\n`).join("")}`;
}

/** Lists installed packages of the set-up. Other programs of the host may need these packages by now. */
async function installedPackages(): Promise<string[]> {
  const names = serverPackages.map(({ name }) => name);
  const format = "${Package} ${db:Status-Status}\\n";
  const { output } = await run(["dpkg-query", "--show", `--showformat=${format}`, ...names], {
    timeoutMs: 20_000,
  });
  return names.filter((name) => output.split("\n").includes(`${name} installed`));
}

async function confirm(dataDir: string, pid: number | undefined): Promise<void> {
  if (pid !== undefined) {
    throw new Failure(`A server runs on ${dataDir} (pid ${pid}).`, {
      hint: "Stop it with kontor down, or add --yes. Nothing was removed.",
    });
  }
  if (!process.stdin.isTTY) {
    throw new Failure("Without a terminal to confirm on, --yes is needed.", { hint: "Nothing was removed." });
  }
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  try {
    const typed = await terminal.question(`Type ${dataDir} to remove all of it for ever: `);
    if (typed.trim() === dataDir) return;
  } finally {
    terminal.close();
  }
  throw new Failure("The text you typed is not the data directory.", { hint: "Nothing was removed." });
}
