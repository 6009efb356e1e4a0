/** What the whole server stands on: machinery only, never a domain. Made once, in main.ts, and handed down. */
import type { Logger } from "pino";
import type { Config } from "./config.ts";
import type { Db } from "./db/db.ts";
import type { Jobs } from "./jobs/jobs.ts";
import type { Clock } from "./lib/clock.ts";
import type { SecretBox } from "./lib/secret-box.ts";
import type { Host } from "./machines/host.ts";

export interface App {
  config: Config;
  db: Db;
  jobs: Jobs;
  /** This server's own host; with more hosts the placement chooses among several. */
  host: Host;
  secrets: SecretBox;
  clock: Clock;
  log: Logger;
}
