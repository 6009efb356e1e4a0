import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { wake } from "./restore.ts";
import { getSandbox } from "../sandboxes.ts";
import type { SandboxRow } from "../store.ts";

/** Resumes a sandbox for a caller. A running sandbox is returned unchanged, so a repeated call is no error. */
export async function resumeSandbox(
  app: Pick<App, "db" | "machines" | "secrets" | "clock" | "log">,
  actor: Actor,
  id: string,
): Promise<SandboxRow> {
  await getSandbox(app, actor, id);
  await wake(app, id, actor);
  return getSandbox(app, actor, id);
}
