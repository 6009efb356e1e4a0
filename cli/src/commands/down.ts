/** `kontor down`: drains and stops a server, however it was started, and stops its embedded PostgreSQL. */
import { stopEmbedded } from "@kontor/server/db/embedded/ensure-embedded.ts";
import { Failure } from "../lib/failure.ts";
import { startStep } from "../lib/steps-view.ts";
import { findRunning, logFile } from "../serve/server-file.ts";
import { afterGraceMs, stopServer } from "../serve/start.ts";
import { readRunningConfig } from "./config.ts";

export async function down(options: { data?: string }): Promise<void> {
  const { dataDir: data, shutdownGraceSeconds } = readRunningConfig(options);
  const running = findRunning(data);
  if (!running) process.stdout.write(`No server serves ${data}.\n`);
  else await drain(running.pid, data, shutdownGraceSeconds);
  if ((await stopEmbedded(data)).stopped) process.stdout.write("✓ Database stopped\n");
}

/** Stops a server. Throws a Failure if the server does not end. */
export async function drain(pid: number, data: string, graceSeconds: number): Promise<void> {
  const view = startStep("Server");
  view.update(`draining, at most ${graceSeconds} s`);
  if (await stopServer(pid, graceSeconds * 1000 + afterGraceMs)) {
    view.done("stopped; sandboxes run on and the next start finds them");
    return;
  }
  view.fail(`pid ${pid} does not end`);
  throw new Failure(`The server (pid ${pid}) does not end.`, {
    hint: `See ${logFile(data)}; kill -9 ${pid} loses nothing that was acknowledged.`,
  });
}
