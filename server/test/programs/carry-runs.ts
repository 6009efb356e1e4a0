/** A server process that only executes runs of agents, and is killed at the given point. */
import { flushCompileCache } from "node:module";
import { RunExecutor } from "#agent/runs/engine/run-executor.ts";
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

const [connectionText = "", key = "", point = ""] = process.argv.slice(2);
const connection = JSON.parse(connectionText) as Connection;
const { db, pool } = openDatabase<Database>(connection, { maxConnections: 5, onError: () => {} });
const log = createLog({ level: "warn", format: "pretty" });
const config = loadConfig({
  env: {},
  dataDir: "/proc/kontor-test",
  overrides: { runtime: "fake", allowFakeRuntime: "on", allowPrivateHosts: "127.0.0.0/8" },
});
const secrets = new SecretBox(Buffer.from(key, "hex"));
const jobs = await openJobs({ db, pool, log, hostId: "crashing", version: "test" });
onKillPoint(async (reached) => {
  if (reached === point) process.kill(process.pid, "SIGKILL");
});
await new RunExecutor({ config, db, jobs, secrets, clock: systemClock, log } as unknown as App, {
  hostId: "crashing",
  pauseMs: 5,
}).start();
