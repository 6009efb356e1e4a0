/**
 * A server process that only runs jobs. The task `record` writes `started` with this process's pid into the table
 * `witness`, waits for the given time, then writes `finished`.
 */
import { flushCompileCache } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { sql } from "kysely";
import { type Connection, openDatabase } from "#db/db.ts";
import type { Database } from "#schema.ts";
import { openJobs } from "#jobs/jobs.ts";
import { createLog } from "#lib/log.ts";

// A killed process writes no compile cache at its end, and the next process would compile all code again.
flushCompileCache();

const connection = JSON.parse(process.argv[2]!) as Connection;
const waitMs = Number(process.argv[3]);
const { db, pool } = openDatabase<Database>(connection, { maxConnections: 5, onError: () => {} });
const jobs = await openJobs({
  db,
  pool,
  log: createLog({ level: "warn", format: "pretty" }),
  hostId: null,
  version: "test",
});
const note = (what: string) =>
  sql`insert into witness (pid, what) values (${process.pid}, ${what})`.execute(db);
await jobs.startWorker({
  record: async () => {
    await note("started");
    await sleep(waitMs);
    await note("finished");
  },
});
process.stdout.write("ready\n");
