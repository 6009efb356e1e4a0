/** Cancels a run, in whichever process it is executed. A finished run stays unchanged. */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { endFromOutside } from "../journal/end-run.ts";
import { get, getRun } from "./read.ts";
import type { RunExecutor } from "../engine/run-executor.ts";
import type { Run } from "../schema.ts";

export async function cancel(
  app: Pick<App, "db" | "clock" | "config">,
  runs: RunExecutor,
  actor: Actor,
  id: string,
): Promise<Run> {
  await getRun(app, actor, id);
  const failure = { code: "cancelled", message: "The run was cancelled." } as const;
  const ended = await app.db.transaction().execute((tx) => endFromOutside(tx, id, failure, app.clock.now()));
  if (ended) runs.abort(id);
  return get(app, runs, actor, id);
}
