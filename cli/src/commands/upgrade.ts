/**
 * `kontor upgrade` replaces the code of a running installation. The new code is prepared beside the old code. Then the
 * shim keeps the sockets open while the server ends, the database is copied, and the new server starts and migrates. If
 * the new server does not start or does not respond, the old code and its database are restored. `docs/decisions/0116`
 * has the reasons.
 *
 * Every step can be killed. Only the link `<data>/current` determines which code runs (server/src/db/upgrade.ts). The
 * shim starts that code when this process ends, and a second `kontor upgrade` completes the upgrade or rolls it back.
 */
import { existsSync, mkdirSync, readFileSync, realpathSync, renameSync, rmSync, statSync } from "node:fs";
import path from "node:path";
import type { Config } from "@kontor/server/config.ts";
import type { Connection } from "@kontor/server/db/db.ts";
import { dumpDatabase } from "@kontor/server/db/dump.ts";
import { ensureEmbedded } from "@kontor/server/db/embedded/ensure-embedded.ts";
import { hasTablesOf } from "@kontor/server/db/load.ts";
import {
  finishRollback,
  endUpgrade,
  type UpgradeState,
  upgradeFiles,
  workStartedAt,
  writeUpgrade,
} from "@kontor/server/db/upgrade.ts";
import { lockBackup } from "../backup/lock.ts";
import { Failure } from "../lib/failure.ts";
import { asRoot, isRoot, productRoot } from "../lib/places.ts";
import { startStep, type StepView } from "../lib/steps-view.ts";
import { readiness } from "../serve/api.ts";
import { codeInUse, findKeeperOf, findUpgrade, followsLink, pointTo, readCurrent } from "../serve/current.ts";
import { findRunning, isKeeper, logFile, type RunningServer } from "../serve/server-file.ts";
import { findKeeper } from "../serve/start.ts";
import { checkDatabase, checkHost, checkRoom, checkSettings, missingMigrations } from "../upgrade/checks.ts";
import { hold, release, StartFailed, waitUntilAnswers } from "../upgrade/held-server.ts";
import {
  commitOf,
  findTarget,
  followCommit,
  prepareCode,
  refuseChangedFiles,
  removeOldReleases,
  type Target,
} from "../upgrade/target.ts";
import { readRunningConfig } from "./config.ts";

export interface UpgradeOptions {
  to?: string;
  data?: string;
  dryRun?: boolean;
  skipDoctor?: boolean;
  rollBack?: boolean;
}

/** Exit code after a rollback: the old version is live again, with every write that it had acknowledged. */
const rolledBackCode = 3;
/** Exit code without a live version: an operator has to act. */
const nobodyServesCode = 4;

/** Values of an installation that all steps use. */
interface Installation {
  config: Config;
  data: string;
  hostId: string;
  connection: Connection;
}

export async function upgrade(options: UpgradeOptions): Promise<void> {
  if (!isRoot()) throw new Failure("An upgrade needs root.", { hint: `Run: ${asRoot()}` });
  const config = readRunningConfig(options);
  const { dataDir: data } = config;
  if (!existsSync(path.join(data, "host-id"))) {
    throw new Failure(`There is no installation in ${data}.`, {
      hint: "Name it: kontor upgrade --data DIR.",
    });
  }
  const unlock = lockBackup(data);
  try {
    const started = findUpgrade(data);
    if (started) await complete(await open(config), started, options);
    else if (options.rollBack)
      throw new Failure("No upgrade is under way.", { hint: "Nothing was changed." });
    else await begin(config, options);
  } finally {
    unlock();
  }
}

async function open(config: Config): Promise<Installation> {
  const { dataDir: data, databaseUrl } = config;
  const hostId = readFileSync(path.join(data, "host-id"), "utf8").trim();
  const connection = databaseUrl === null ? (await ensureEmbedded(data)).connection : { url: databaseUrl };
  return { config, data, hostId, connection };
}

async function begin(config: Config, options: UpgradeOptions): Promise<void> {
  const { dataDir: data } = config;
  const { running, keeper, from } = await findServer(data);
  const installation = await open(config);
  const checking = startStep("Checks");
  const { target, missing } = await failing(checking, async () => {
    checking.update("the new code");
    const found = await findTarget(productRoot, options.to);
    if (found.commit === undefined ? found.directory === from : found.commit === (await commitAt(from))) {
      return { target: undefined, missing: [] };
    }
    if (found.commit !== undefined) await refuseChangedFiles(productRoot);
    checking.update("the database and the disks");
    const facts = await checkDatabase(installation.connection, found);
    checkRoom(data, productRoot, facts);
    if (!options.skipDoctor) {
      checking.update("the host (kontor doctor)");
      await checkHost(data);
    }
    return { target: found, missing: missingMigrations(facts, found) };
  });
  if (target === undefined) {
    checking.done("nothing to do");
    process.stdout.write(
      `${data} is served by this code already (${from}). If you changed the checkout yourself, kontor restart starts it.\n`,
    );
    return;
  }
  checking.done();
  process.stdout.write(`From  ${from}\nTo    ${target.name}\n`);
  process.stdout.write(`Migrations  ${missing.length === 0 ? "none" : missing.join(", ")}\n`);
  if (options.dryRun) {
    process.stdout.write(
      `Would prepare the code in ${target.directory}, end the server (pid ${running.pid}), copy the database, and start the new server. Nothing was changed.\n`,
    );
    return;
  }
  const preparing = startStep("New code");
  await failing(preparing, async () => {
    await prepareCode(productRoot, target, preparing);
    await checkSettings(data, target);
  });
  preparing.done(target.directory);
  // A server compares the path with its own real path, and `.cache` may be a symlink.
  await replace(installation, { keeper, from, to: realpathSync(target.directory) });
  await finish(installation, target.directory, target);
}

/** Returns the running server, its shim, and the directory of its code. */
async function findServer(data: string): Promise<{ running: RunningServer; keeper: number; from: string }> {
  const running = findRunning(data);
  if (!running) {
    throw new Failure(`No server serves ${data}.`, { hint: "Start it first: kontor up --detach." });
  }
  const keeper = findKeeper(running.pid);
  const from = readCurrent(data);
  if (keeper === undefined || from === undefined || !followsLink(keeper, data)) {
    throw new Failure(
      `The server (pid ${running.pid}) was started by an older Kontor, or not by kontor up.`,
      {
        hint: "Run kontor down and kontor up --detach once. From then on, kontor upgrade replaces the code.",
      },
    );
  }
  if (!(await readiness(running.base_url))?.ready) {
    throw new Failure(`The server (pid ${running.pid}) is not ready.`, { hint: `See ${logFile(data)}.` });
  }
  return { running, keeper, from };
}

/** Returns the commit of a directory of code. Directories of earlier upgrades are named by their commit. */
async function commitAt(directory: string): Promise<string | undefined> {
  const name = path.basename(directory);
  return /^[0-9a-f]{40,64}$/.test(name) ? name : commitOf(directory);
}

async function replace(
  installation: Installation,
  { keeper, from, to }: { keeper: number; from: string; to: string },
): Promise<void> {
  const { config, data, connection } = installation;
  const files = upgradeFiles(data);
  const signals = ignoreSignals();
  try {
    const copying = startStep("Database copy");
    try {
      copying.update("ending the server; connections wait");
      await hold(keeper, config.shutdownGraceSeconds);
      copying.update("writing");
      for (const old of [files.copy, files.after]) rmSync(old, { recursive: true, force: true });
      mkdirSync(files.directory, { recursive: true, mode: 0o700 });
      const partial = `${files.copy}.tmp`;
      rmSync(partial, { recursive: true, force: true });
      await dumpDatabase(connection, partial);
      renameSync(partial, files.copy);
      writeUpgrade(data, { format: 1, from, to, started_at: new Date().toISOString() });
    } catch (error) {
      copying.fail((error as Error).message);
      await startOld(installation, keeper);
      throw new Failure(`The database was not copied: ${(error as Error).message}`, {
        hint: "The old version is live again, and nothing was changed.",
        exitCode: rolledBackCode,
      });
    }
    copying.done(files.copy);
    pointTo(data, to);
    await judge(installation, { keeper, logOffset: release(keeper, data), from });
  } finally {
    signals.done();
  }
}

/** Waits for the new server, and rolls back if it does not start. */
async function judge(
  installation: Installation,
  { keeper, logOffset, from }: { keeper: number; logOffset: number; from: string },
): Promise<void> {
  const cause = await startFailure(installation, keeper, logOffset);
  if (cause !== undefined) await rollBack(installation, keeper, from, cause);
}

/** Returns undefined once the new server responds, else the cause of the failed start. */
async function startFailure(
  installation: Installation,
  keeper: number,
  logOffset: number,
): Promise<string | undefined> {
  const { data, connection } = installation;
  const view = startStep("New server");
  try {
    const server = await waitUntilAnswers({ data, keeper, logOffset }, connection, view);
    view.done(`${server.base_url} (pid ${server.pid})`);
    return undefined;
  } catch (error) {
    if (!(error instanceof StartFailed)) throw error;
    view.fail("it does not start");
    return error.message;
  }
}

/** Ends the new server, restores the old code and its database, and always throws. */
async function rollBack(
  installation: Installation,
  keeper: number | undefined,
  from: string,
  cause: string,
): Promise<never> {
  const { config, data, hostId, connection } = installation;
  const view = startStep("Rollback");
  const report = await failing(view, async () => {
    view.update("ending the new server");
    if (keeper !== undefined) await hold(keeper, config.shutdownGraceSeconds);
    const kept = await keepNewRows(installation, view);
    pointTo(data, from);
    view.update("the database");
    await finishRollback(connection, { dataDir: data, hostId, code: from });
    if (keeper !== undefined) await startOld(installation, keeper);
    return kept;
  }).catch((error: unknown) => {
    throw new Failure(`The rollback failed: ${(error as Error).message}`, {
      hint: `The new version did not start: ${cause}\nRun kontor upgrade again: it continues the rollback.`,
      exitCode: nobodyServesCode,
    });
  });
  view.done(from);
  const state =
    keeper === undefined ? "No server runs: start it with kontor up." : "The old version is live again.";
  throw new Failure(`The upgrade was rolled back. ${state}`, {
    hint: [`The new version did not start: ${cause}`, report].filter(Boolean).join("\n"),
    exitCode: rolledBackCode,
  });
}

/**
 * Copies the database of a new server that served requests, if the rollback will replace it. Returns the text to
 * report.
 */
async function keepNewRows(
  { data, connection }: Installation,
  view: { update(text: string): void },
): Promise<string> {
  const files = upgradeFiles(data);
  const since = workStartedAt(data);
  if (since === undefined || (await hasTablesOf(connection, files.copy))) return "";
  const period = `between ${since.toISOString()} and ${new Date().toISOString()}`;
  view.update("copying what the new server wrote");
  // A killed rollback may have left the copy, complete or not. By now the database may contain only a part of the old
  // rows.
  if (!existsSync(files.after)) {
    const partial = `${files.after}.tmp`;
    rmSync(partial, { recursive: true, force: true });
    await dumpDatabase(connection, partial);
    renameSync(partial, files.after);
  }
  return `The new version worked ${period}. The restored database lacks the writes of that time; ${files.after} has all of them.`;
}

async function startOld({ data, connection }: Installation, keeper: number): Promise<void> {
  if (!isKeeper(keeper)) {
    throw new Failure(`The shim (pid ${keeper}) ended, and no server runs.`, {
      hint: "Start one with kontor up --detach.",
      exitCode: nobodyServesCode,
    });
  }
  const logOffset = release(keeper, data);
  const view = startStep("Old server");
  try {
    const server = await waitUntilAnswers({ data, keeper, logOffset }, connection, view);
    view.done(`${server.base_url} (pid ${server.pid})`);
  } catch (error) {
    view.fail((error as Error).message);
    throw new Failure(`The old server does not start: ${(error as Error).message}`, {
      hint: `See ${logFile(data)}.`,
      exitCode: nobodyServesCode,
    });
  }
}

/**
 * Ends a successful upgrade. If the command is killed before the first line, a second call repeats all of it; later
 * lines only clean up.
 */
async function finish({ data }: Installation, to: string, target?: Target): Promise<void> {
  const commit = target?.commit ?? (await commitAt(to));
  const isRelease = path.dirname(to) === path.join(productRoot, ".cache", "releases");
  if (isRelease && commit !== undefined) {
    const following = startStep("Checkout");
    try {
      following.done(`${productRoot} ${await followCommit(productRoot, commit)}`);
    } catch (error) {
      following.fail((error as Error).message);
      process.stdout.write(`· Move ${productRoot} to ${commit} yourself, before the next kontor up.\n`);
    }
  }
  endUpgrade(data);
  removeOldReleases(productRoot, [to, ...codeInUse()]);
  process.stdout.write(`Upgraded. The database before it is in ${upgradeFiles(data).copy}.\n`);
  if (!isRelease) process.stdout.write(`From now on, use ${path.join(to, "kontor")}.\n`);
}

/** Completes an upgrade that was killed, or rolls it back. */
async function complete(
  installation: Installation,
  { from, to }: UpgradeState,
  options: UpgradeOptions,
): Promise<void> {
  const { data } = installation;
  process.stdout.write(`An upgrade from ${from} to ${to} was interrupted.\n`);
  const keeper = findKeeperOf(data);
  const isForward = readCurrent(data) === to && !options.rollBack;
  if (options.dryRun) {
    const outcome = isForward
      ? "complete it, or roll it back if the new server does not start"
      : "roll it back";
    process.stdout.write(`Would ${outcome}. Nothing was changed.\n`);
    return;
  }
  const signals = ignoreSignals();
  try {
    if (!isForward) return await rollBack(installation, keeper, from, "the upgrade was interrupted");
    if (keeper === undefined) {
      throw new Failure("No server runs.", {
        hint: "Start it with kontor up --detach, which starts the new code, and run this again. If it does not start, kontor upgrade --roll-back brings the old code back.",
        exitCode: nobodyServesCode,
      });
    }
    // A start in progress continues, and the shim retries a failed start.
    const cause = await startFailure(installation, keeper, sizeOf(logFile(data)));
    const since = workStartedAt(data);
    if (cause !== undefined && since !== undefined) {
      throw new Failure(`The new server does not respond, and has worked since ${since.toISOString()}.`, {
        hint: `${cause}\nkontor upgrade --roll-back brings the old code and the old database back, without the writes since then.`,
        exitCode: nobodyServesCode,
      });
    }
    if (cause !== undefined) await rollBack(installation, keeper, from, cause);
  } finally {
    signals.done();
  }
  await finish(installation, to);
}

/** Marks the step as failed if `work` throws. */
async function failing<T>(view: StepView, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    // The error itself is printed at the end.
    view.fail("failed");
    throw error;
  }
}

/** Ignores signals: while the server is down, Ctrl-C or a closed terminal must not interrupt the upgrade. */
function ignoreSignals(): { done(): void } {
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  const ignore = (): void => {};
  // The terminal may be gone, so that each write to it fails.
  process.stderr.on("error", ignore);
  for (const signal of signals) process.on(signal, ignore);
  return { done: () => signals.forEach((signal) => process.off(signal, ignore)) };
}

function sizeOf(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}
