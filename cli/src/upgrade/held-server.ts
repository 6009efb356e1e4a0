/**
 * Stops and starts the server behind the sockets of its shim during an upgrade. The server is down while the database
 * is copied. The server then starts from the directory to which `<data>/current` leads, and is watched until it is
 * ready. Connections wait meanwhile. The shim starts a server by itself if this process is killed.
 */
import { existsSync, statSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import type { Connection } from "@kontor/server/db/db.ts";
import { databaseActivity } from "@kontor/server/db/upgrade.ts";
import { Failure } from "../lib/failure.ts";
import type { StepView } from "../lib/steps-view.ts";
import { call, readiness } from "../serve/api.ts";
import { childrenOf } from "../serve/current.ts";
import { LogTail, worthShowing } from "../serve/log-tail.ts";
import { findRunning, isKeeper, logFile, readOperator, type RunningServer } from "../serve/server-file.ts";
import { afterGraceMs } from "../serve/start.ts";

/** Time after which a start without progress has failed. A start with progress may take any time. */
const idleDeadlineMs = 120_000;
/** Wait after the signal: the shim may just have started a server, which it then ends. */
const quietMs = 500;
const pollMs = 50;
/** Number of transactions that a poll itself and PostgreSQL's own maintenance make. */
const ownTransactions = 3;

/** Ends the server, and delays the next start until `release` or the end of this process. */
export async function hold(keeper: number, graceSeconds: number): Promise<void> {
  process.kill(keeper, "SIGUSR1");
  const deadline = Date.now() + graceSeconds * 1000 + afterGraceMs;
  let quietSince = Date.now();
  while (Date.now() - quietSince < quietMs) {
    if (!isKeeper(keeper)) throw new Failure(`The shim (pid ${keeper}) ended.`, { exitCode: 4 });
    if (childrenOf(keeper).length > 0) quietSince = Date.now();
    if (Date.now() > deadline) {
      throw new Failure(`The server below the shim (pid ${keeper}) does not end.`, {
        hint: "kill -9 it: nothing that was acknowledged is lost, and the upgrade can be run again.",
      });
    }
    await delay(pollMs);
  }
}

/** Lets the shim start the server. Returns the offset of this start in the log. */
export function release(keeper: number, data: string): number {
  const log = logFile(data);
  const offset = existsSync(log) ? statSync(log).size : 0;
  process.kill(keeper, "SIGHUP");
  return offset;
}

/** Watches a start until the server is ready and responds to a request. Throws a `StartFailed` with the cause. */
export async function waitUntilAnswers(
  { data, keeper, logOffset }: { data: string; keeper: number; logOffset: number },
  connection: Connection,
  view: StepView,
): Promise<RunningServer> {
  const tail = new LogTail(logFile(data), logOffset);
  const shown: string[] = [];
  let child: number | undefined;
  let transactions = 0;
  let progressAt = Date.now();
  let databaseAt = 0;
  try {
    for (;;) {
      const lines = tail.lines();
      if (lines.length > 0) progressAt = Date.now();
      for (const line of lines) {
        const text = worthShowing(line);
        if (text) shown.push(text);
        if (line.includes('"level":"fatal"')) throw new StartFailed(last(shown));
      }
      const [now] = childrenOf(keeper);
      if (!isKeeper(keeper) || (child !== undefined && now !== child)) throw new StartFailed(last(shown));
      child = now;
      const server = findRunning(data);
      if (server && server.pid === child) {
        view.update("checking whether it responds");
        if (await answers(server, data)) return server;
      }
      if (Date.now() - databaseAt > 1000) {
        databaseAt = Date.now();
        const activity = await databaseActivity(connection).catch(() => undefined);
        if (activity && (activity.isBusy || activity.transactions > transactions + ownTransactions)) {
          progressAt = Date.now();
        }
        transactions = activity?.transactions ?? transactions;
        view.update(activity?.isBusy ? "working on the database" : "starting");
      }
      if (Date.now() - progressAt > idleDeadlineMs) {
        throw new StartFailed(
          [`no sign of work for ${idleDeadlineMs / 1000} s`, last(shown)].filter(Boolean).join("\n"),
        );
      }
      await delay(pollMs);
    }
  } finally {
    tail.close();
  }
}

export class StartFailed extends Error {
  override readonly name = "StartFailed";
}

/** Returns whether the server is ready and serves a request of its operator. */
async function answers(server: RunningServer, data: string): Promise<boolean> {
  if (!(await readiness(server.base_url))?.ready) return false;
  const token = readOperator(data)?.token;
  if (token === undefined) return true;
  try {
    const { status } = await call({ baseUrl: server.base_url, token }, "GET", "/v1/sandboxes?limit=1");
    // The operator may have revoked the first token: a 401 is a response too.
    return status < 500;
  } catch {
    return false;
  }
}

function last(lines: readonly string[]): string {
  return lines.slice(-10).join("\n") || "the server ended without a message";
}
