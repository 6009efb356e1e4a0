/** `kontor restart`: stops and starts the server while the shim keeps its sockets open. Connections wait meanwhile. */
import { existsSync, statSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import type { Config } from "@kontor/server/config.ts";
import type { Connection } from "@kontor/server/db/db.ts";
import { ensureEmbedded } from "@kontor/server/db/embedded/ensure-embedded.ts";
import { Failure } from "../lib/failure.ts";
import { productRoot } from "../lib/places.ts";
import { startStep, type StepView } from "../lib/steps-view.ts";
import { readiness } from "../serve/api.ts";
import { pointTo } from "../serve/current.ts";
import { LogTail, worthShowing } from "../serve/log-tail.ts";
import { findRunning, logFile, type RunningServer } from "../serve/server-file.ts";
import { writeRestartSettings } from "../serve/restart-settings.ts";
import { withRunningSettings } from "../serve/running-settings.ts";
import { afterGraceMs, findKeeper } from "../serve/start.ts";
import { nativeStep } from "../setup/native.ts";
import { setUp } from "../setup/setup.ts";
import { findMove, makeMove, type Move } from "../upgrade/leave-release.ts";
import { readConfig } from "./config.ts";

/**
 * Timeout of a restart. Requests in flight get three seconds. A start takes one second, or minutes when it migrates a
 * database.
 */
const readyWithinMs = 120_000 + afterGraceMs;

export async function restart(options: { data?: string }): Promise<void> {
  const config = readConfig(options);
  const { dataDir: data } = config;
  const running = findRunning(data);
  if (!running) throw new Failure(`No server serves ${data}.`, { hint: "Start one with kontor up." });
  refuseOtherPort(config, running);
  // The next server gets both the stored settings and those of this shell. If it refused them, the service would be
  // down.
  readConfig({ data, env: { ...withRunningSettings(data), ...process.env } });
  const keeper = findKeeper(running.pid);
  if (keeper === undefined) {
    throw new Failure(`The server (pid ${running.pid}) was not started by kontor up.`, {
      hint: "Restart it the way it was started, or run kontor down and kontor up, which interrupt the service.",
    });
  }
  const move = await findMove(data, productRoot, () => connectionOf(config));
  if (move) await setUp([nativeStep]);
  writeRestartSettings(data);
  const signal = (): void => void process.kill(keeper, "SIGHUP");
  const logOffset = sizeOf(logFile(data));
  if (move) makeMove(data, move, signal);
  else signal();
  const view = startStep("Server");
  const cause = await waitForNext({ data, pid: running.pid, logOffset: move && logOffset }, view);
  if (cause === undefined) return;
  view.fail("not ready again");
  if (move) await goBack(data, move, { signal, cause });
  throw new Failure("The server is not ready again.", { hint: `See ${logFile(data)}` });
}

/** Returns the database connection of the running server. */
async function connectionOf({ dataDir, databaseUrl }: Config): Promise<Connection> {
  return databaseUrl === null ? (await ensureEmbedded(dataDir)).connection : { url: databaseUrl };
}

/**
 * Waits for the next server. Returns undefined once a server after `pid` is ready, else the cause of the failure. With
 * `logOffset`, the offset of this start in the log, a fatal line ends the wait, because the shim retries the same code
 * endlessly.
 */
async function waitForNext(
  { data, pid, logOffset }: { data: string; pid: number; logOffset: number | undefined },
  view: StepView,
): Promise<string | undefined> {
  const log = logFile(data);
  const tail = logOffset !== undefined && existsSync(log) ? new LogTail(log, logOffset) : undefined;
  try {
    const deadline = Date.now() + readyWithinMs;
    while (Date.now() < deadline) {
      view.update("ending and starting again");
      const next = findRunning(data);
      if (next && next.pid !== pid && (await readiness(next.base_url))?.ready) {
        view.done(`${next.base_url} (pid ${next.pid})`);
        return undefined;
      }
      const fatal = tail?.lines().find((line) => line.includes('"level":"fatal"'));
      if (fatal !== undefined) return worthShowing(fatal) ?? "it ended with a fatal error";
      await delay(100);
    }
    return `it was not ready within ${readyWithinMs / 1000} s`;
  } finally {
    tail?.close();
  }
}

/** Starts the code of the last upgrade again, because the checkout's code did not start. Always throws. */
async function goBack(
  data: string,
  { from, to, missing }: Move,
  { signal, cause }: { signal: () => void; cause: string },
): Promise<never> {
  if (missing.length > 0) {
    throw new Failure(`The code of ${to} does not start: ${cause}`, {
      hint: `It has migrations (${missing.join(", ")}), so the code before it may not fit the database. See ${logFile(data)}. A restart copies no database; kontor upgrade does.`,
      exitCode: 4,
    });
  }
  const pid = findRunning(data)?.pid ?? 0;
  pointTo(data, from);
  signal();
  const view = startStep("Old server");
  const failure = await waitForNext({ data, pid, logOffset: undefined }, view);
  if (failure !== undefined) {
    view.fail("not ready again");
    throw new Failure(`No version is live: ${failure}.`, { hint: `See ${logFile(data)}`, exitCode: 4 });
  }
  throw new Failure(`The code of ${to} does not start: ${cause}`, {
    hint: `The code of the last upgrade is live again (${from}).`,
    exitCode: 3,
  });
}

function sizeOf(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

/** Refuses another port, because a restart keeps the listening sockets. */
function refuseOtherPort({ port }: Config, running: RunningServer): void {
  if (process.env["KONTOR_PORT"] === undefined || port === 0 || port === running.port) return;
  throw new Failure(`KONTOR_PORT is ${port}, and the server listens on ${running.port}.`, {
    hint: "A restart keeps the port. Run kontor down, then kontor up, to change it.",
  });
}
