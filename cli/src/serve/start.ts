/**
 * Starts the server, watches its start, and stops it. The server is always a process in its own session, and logs to a
 * file. In the foreground, this command shows the server's warnings and forwards Ctrl-C.
 */
import { readFileSync } from "node:fs";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Failure } from "../lib/failure.ts";
import { inProduct, productRoot } from "../lib/places.ts";
import { startDetached, type StartedProcess } from "../lib/run.ts";
import type { StepView } from "../lib/steps-view.ts";
import { readiness, type Readiness } from "./api.ts";
import { findUpgrade, pointTo, readCurrent, serverThroughLink } from "./current.ts";
import { openLog, worthShowing } from "./log-tail.ts";
import { forgetRestartSettings } from "./restart-settings.ts";
import { findRunning, isKeeper, isServer, logFile, parentOf, type RunningServer } from "./server-file.ts";

/**
 * Timeout of a start. initdb, migrations and the first listen take about 3 s. The rest of the time is for a slow disk.
 */
const listenDeadlineMs = 120_000;
const pollMs = 100;
const shim = inProduct("runtime/shim/build/kontor-shim");
/** Time to release machines and connections, in addition to the grace period of requests and jobs. */
export const afterGraceMs = 20_000;

export interface StartedServer {
  process: StartedProcess;
  log: string;
  /** Offset of this start's first line in the log. */
  logOffset: number;
}

/**
 * Starts a server. With `doors`, addresses such as `127.0.0.1:8080`, the shim keeps these sockets open during a
 * restart, and starts the server again after a crash. Without `doors`, the server opens its own sockets.
 */
export function startServer(
  data: string,
  port: number | undefined,
  doors: readonly string[] = [],
): StartedServer {
  forgetRestartSettings(data);
  const log = logFile(data);
  const { fd, size } = openLog(log);
  if (findUpgrade(data) === undefined) pointTo(data, productRoot);
  else {
    // The upgrade has set the link to the code.
    process.stderr.write(
      `· An upgrade was interrupted. Starting ${readCurrent(data)}; run kontor upgrade afterwards.\n`,
    );
  }
  const env = {
    ...process.env,
    KONTOR_DATA_DIR: data,
    // With Node's compile cache, a start uses a third less CPU time until the server listens.
    NODE_COMPILE_CACHE: path.join(data, "compile-cache"),
    ...(port === undefined ? {} : { KONTOR_PORT: String(port) }),
  };
  const listen = doors.flatMap((door) => ["--listen", door]);
  const argv =
    doors.length === 0
      ? ([process.execPath, inProduct("server/src/main.ts")] as const)
      : ([shim, "keep", ...listen, "--", ...serverThroughLink(data)] as const);
  const child = startDetached(argv, fd, env);
  return { process: child, log, logOffset: size };
}

/**
 * Waits until the server listens and is ready. Throws an error with the last lines of the log if the server ends
 * before.
 */
export async function waitUntilReady(
  started: StartedServer,
  data: string,
  view: StepView,
): Promise<RunningServer> {
  const deadline = Date.now() + listenDeadlineMs;
  let ended: string | undefined;
  void started.process.exit.then((how) => (ended = how));
  while (Date.now() < deadline) {
    if (ended) throw notStarted(`the server ended: ${ended}`, started);
    const running = findRunning(data);
    if (running && (await readiness(running.base_url))?.ready) return running;
    view.update(running ? "getting ready" : "starting the database and the server");
    await delay(pollMs);
  }
  throw notStarted(`the server is not ready after ${listenDeadlineMs / 1000} s`, started);
}

/**
 * Waits for a template. Returns undefined if the server does not know the template, because the create reports the
 * error.
 */
export async function waitForTemplate(
  baseUrl: string,
  name: string,
  view: StepView,
): Promise<Readiness["templates"][number] | undefined> {
  for (;;) {
    const template = (await readiness(baseUrl))?.templates.find((one) => one.name === name);
    if (!template || template.state === "ready") return template;
    if (template.state === "failed") {
      throw new Failure(`template ${name} could not be made`, { hint: template.error ?? template.step });
    }
    view.update(template.step, template.fraction);
    await delay(300);
  }
}

/** Sends SIGTERM and waits for the drain; returns false if the server still runs after `waitMs`. */
export async function stopServer(pid: number, waitMs: number): Promise<boolean> {
  process.kill(pid, "SIGTERM");
  const deadline = Date.now() + waitMs;
  while (isServer(pid)) {
    if (Date.now() > deadline) return false;
    await delay(pollMs);
  }
  return true;
}

/**
 * Returns the pid of the process that keeps a server's sockets open (`kontor-shim keep`). On SIGHUP this process ends
 * the server and starts the next one, with the code and configuration of that moment. Undefined if the server has no
 * such process.
 */
export function findKeeper(pid: number): number | undefined {
  const keeper = parentOf(pid);
  return keeper !== undefined && isKeeper(keeper) ? keeper : undefined;
}

function notStarted(what: string, { log, logOffset }: StartedServer): Failure {
  const lines = readFileSync(log).subarray(logOffset).toString("utf8").split("\n");
  const tail = lines
    .flatMap((line) => worthShowing(line) ?? [])
    .slice(-20)
    .join("\n");
  return new Failure(what, { hint: `${tail}\n(all of it: ${log})` });
}
