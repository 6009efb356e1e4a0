/** `kontor restart`: the server ends and starts again behind doors that stay open; who comes meanwhile waits. */
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { Config } from "@kontor/server/config.ts";
import { Failure } from "../lib/failure.ts";
import { inProduct, productRoot } from "../lib/places.ts";
import { startStep } from "../lib/steps-view.ts";
import { readiness } from "../serve/api.ts";
import { findUpgrade, pointTo, readCurrent } from "../serve/current.ts";
import { findRunning, logFile, type RunningServer } from "../serve/server-file.ts";
import { writeRestartSettings } from "../serve/restart-settings.ts";
import { withRunningSettings } from "../serve/running-settings.ts";
import { afterGraceMs, findKeeper } from "../serve/start.ts";
import { nativeStep } from "../setup/native.ts";
import { setUp } from "../setup/setup.ts";
import { commitOf } from "../upgrade/target.ts";
import { readConfig } from "./config.ts";

/** Requests under way get three seconds; a start takes one, and minutes where a database is migrated. */
const readyWithinMs = 120_000 + afterGraceMs;

export async function restart(options: { data?: string }): Promise<void> {
  const config = readConfig(options);
  const { dataDir: data } = config;
  const running = findRunning(data);
  if (!running) throw new Failure(`No server serves ${data}.`, { hint: "Start one with kontor up." });
  refuseOtherPort(config, running);
  // The next server has the settings of both, and a start that refuses them would end the service.
  readConfig({ data, env: { ...withRunningSettings(data), ...process.env } });
  const view = startStep("Server");
  const keeper = findKeeper(running.pid);
  if (keeper === undefined) {
    view.fail("nobody keeps its doors open");
    throw new Failure(`The server (pid ${running.pid}) was not started by kontor up.`, {
      hint: "Whoever started it can restart it; kontor down and kontor up do so with a pause.",
    });
  }
  await leaveOldRelease(data);
  writeRestartSettings(data);
  process.kill(keeper, "SIGHUP");
  const deadline = Date.now() + readyWithinMs;
  while (Date.now() < deadline) {
    view.update("ending and starting again");
    const next = findRunning(data);
    if (next && next.pid !== running.pid && (await readiness(next.base_url))?.ready) {
      view.done(`${next.base_url} (pid ${next.pid})`);
      return;
    }
    await delay(100);
  }
  view.fail("not ready again");
  throw new Failure("The server is not ready again.", { hint: `See ${logFile(data)}` });
}

/** Starts the checkout's code if its commit is not that of the last upgrade, as after a `git pull`. */
async function leaveOldRelease(data: string): Promise<void> {
  const current = readCurrent(data);
  if (findUpgrade(data) !== undefined || current === undefined) return;
  if (path.dirname(current) !== inProduct(".cache", "releases")) return;
  if (path.basename(current) === (await commitOf(productRoot))) return;
  await setUp([nativeStep]);
  pointTo(data, productRoot);
}

/** A restart keeps the listening sockets, so the port cannot change. */
function refuseOtherPort({ port }: Config, running: RunningServer): void {
  if (process.env["KONTOR_PORT"] === undefined || port === 0 || port === running.port) return;
  throw new Failure(`KONTOR_PORT is ${port}, and the server listens on ${running.port}.`, {
    hint: "A restart keeps the port. Run kontor down, then kontor up, to change it.",
  });
}
