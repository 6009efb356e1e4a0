/** Background jobs of the sandbox API, by their names in the queue. */
import type { App } from "#app.ts";
import type { Tasks } from "#jobs/jobs.ts";
import { runMove, moveTask } from "./volumes/move.ts";
import { deliverInTurn, newDeliveryTurns } from "./webhooks/deliver.ts";
import { deliverTask } from "./webhooks/queue.ts";

export function sandboxTasks(
  app: Pick<App, "db" | "machines" | "secrets" | "config" | "clock" | "log">,
): Tasks {
  const turns = newDeliveryTurns();
  return {
    [deliverTask]: ({ webhook }: { webhook: string }, { signal }) =>
      deliverInTurn(app, turns, webhook, signal),
    [moveTask(app)]: (payload: { volume: string; to: string }, context) => runMove(app, payload, context),
  };
}
