/** The background work of this room, by the names it is queued under. */
import type { App } from "#app.ts";
import type { Tasks } from "#jobs/jobs.ts";
import { carryOut, moveTask } from "./volumes/move.ts";
import { deliver } from "./webhooks/deliver.ts";
import { deliverTask } from "./webhooks/queue.ts";

export const sandboxTasks = (app: Pick<App, "db" | "machines" | "secrets" | "config" | "clock">): Tasks => ({
  [deliverTask]: ({ webhook }: { webhook: string }, { signal }) => deliver(app, webhook, signal),
  [moveTask(app)]: (payload: { volume: string; to: string }, context) => carryOut(app, payload, context),
});
