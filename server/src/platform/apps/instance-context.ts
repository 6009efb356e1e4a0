/** Interface of the running apps for a single instance. */
import type { App } from "#app.ts";
import type { LogRing } from "#machines/host/log-rings.ts";
import type { End } from "./output/exit-reason.ts";
import type { AppRoutes } from "./release/route-table.ts";
import type { InstanceRow } from "./store.ts";

export type Needs = Pick<App, "config" | "db" | "machines" | "secrets" | "clock" | "log">;

export interface InstanceName {
  environmentId: string;
  row: InstanceRow;
}

export interface InstanceContext {
  readonly app: Needs;
  readonly routes: AppRoutes;
  /** Runs `work` after the earlier work of the same environment has ended. */
  turn<T>(environmentId: string, work: () => Promise<T>): Promise<T>;
  /** Returns the log of an environment. */
  ring(environmentId: string): LogRing;
  /** Writes a line to the app's own log. */
  writeLog(instance: InstanceName, text: string): Promise<void>;
  /** Notifies the workspace that an app ends repeatedly. */
  notifyEnd(instance: InstanceName, end: End): Promise<void>;
}
