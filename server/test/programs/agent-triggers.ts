/**
 * A server process that checks schedules, or accepts one delivery to a webhook, and is killed at the given point.
 */
import { flushCompileCache } from "node:module";
import { RunExecutor } from "#agent/runs/engine/run-executor.ts";
import { Scheduler } from "#agent/schedules/scheduler.ts";
import { getReceiving, receive } from "#agent/webhooks/receive.ts";
import type { App } from "#app.ts";
import { loadConfig } from "#config.ts";
import { type Connection, openDatabase } from "#db/db.ts";
import type { Database } from "#schema.ts";
import { openJobs } from "#jobs/jobs.ts";
import { systemClock } from "#lib/clock.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { createLog } from "#lib/log.ts";
import { SecretBox } from "#lib/secret-box.ts";

// A killed process writes no compile cache at its end, and the next process would compile all code again.
flushCompileCache();

const [connectionText = "", key = "", point = "", webhookId] = process.argv.slice(2);
const connection = JSON.parse(connectionText) as Connection;
const { db, pool } = openDatabase<Database>(connection, { maxConnections: 5, onError: () => {} });
const log = createLog({ level: "warn", format: "pretty" });
const config = loadConfig({
  env: {},
  dataDir: "/proc/kontor-test",
  overrides: { runtime: "fake", allowFakeRuntime: "on" },
});
const secrets = new SecretBox(Buffer.from(key, "hex"));
const jobs = await openJobs({ db, pool, log, hostId: "crashing", version: "test" });
onKillPoint(async (reached) => {
  if (reached === point) process.kill(process.pid, "SIGKILL");
});
const app = { config, db, jobs, secrets, clock: systemClock, log } as unknown as App;
// The executor is not started, so that another process executes the inserted runs.
const runs = new RunExecutor(app, { hostId: "crashing" });
if (webhookId === undefined) await new Scheduler(app, runs).sweep();
else {
  const delivery = { headers: { "webhook-id": "the-only-one" }, query: {}, body: Buffer.from("{}") };
  await receive(app, runs, await getReceiving(app, webhookId), delivery);
}
