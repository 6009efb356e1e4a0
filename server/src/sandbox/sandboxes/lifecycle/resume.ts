import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { wake } from "./restore.ts";
import { getSandbox } from "../sandboxes.ts";
import type { SandboxRow } from "../store.ts";

/** Resumes for a caller. On a sandbox that runs it changes nothing and answers the same: a call sent twice is no fault. */
export async function resumeSandbox(
  app: Pick<App, "db" | "machines" | "secrets" | "clock" | "log">,
  actor: Actor,
  id: string,
): Promise<SandboxRow> {
  await getSandbox(app, actor, id);
  await wake(app, id, actor);
  return getSandbox(app, actor, id);
}
