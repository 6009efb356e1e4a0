/**
 * Objects that every part of the server uses. These objects know nothing of sandboxes, projects or agents.
 * `compose/app.ts` creates the objects once and passes them on.
 */
import type { Logger } from "pino";
import type { Config } from "./config.ts";
import type { Db } from "#schema.ts";
import type { Jobs } from "./jobs/jobs.ts";
import type { Clock } from "./lib/clock.ts";
import type { SecretBox } from "./lib/secret-box.ts";
import type { Machines } from "./machines/machines.ts";

export interface App {
  config: Config;
  db: Db;
  jobs: Jobs;
  /** Machines of this host: the pool, the images, the connection to each machine. */
  machines: Machines;
  secrets: SecretBox;
  clock: Clock;
  log: Logger;
}
