/** Dependencies of an add-on's instances. */
import type { NotificationKind } from "#accounts/notifications/news.ts";
import type { App } from "#app.ts";
import type { OnImageProgress } from "#machines/images.ts";
import type { Engine } from "./engines/engine.ts";
import type { Engines } from "./engines/engines.ts";
import type { AddonView } from "./store.ts";

export type Needs = Pick<App, "config" | "db" | "machines" | "secrets" | "clock" | "log">;

export interface AddonsContext {
  readonly app: Needs;
  readonly engines: Engines;
  /** Milliseconds between health checks, which also read the free disk. */
  readonly lookEveryMs: number;
  /** Returns the id of the engine's image, which is built first if it is missing. */
  image(engine: Engine, signal: AbortSignal, progress?: OnImageProgress): Promise<string>;
  /** Notifies the workspace of an event of the add-on. */
  notifyOwner(row: AddonView, kind: NotificationKind, what: string, body: string): Promise<void>;
}
