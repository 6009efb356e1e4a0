/**
 * Deadlines are kept by a look at the table every second, not by a job per sandbox: a create stays free of queue
 * writes, a keep-alive is one update, and a server that was down catches up with its first look.
 */
import type { App } from "#app.ts";
import { deleteTerminatedBefore, findExpired } from "./store.ts";
import { endSandbox } from "./terminate.ts";

type Needs = Pick<App, "db" | "machines" | "clock" | "log">;

const lookEveryMs = 1_000;
const forgetEveryMs = 3_600_000;
const keepTerminatedMs = 30 * 24 * 3_600_000;

export async function expireSandboxes(app: Needs): Promise<number> {
  const now = app.clock.now();
  const expired = await findExpired(app.db, now);
  for (const row of expired) {
    await endSandbox(app, { id: row.id, reason: "timeout", expiredBy: now, row });
  }
  return expired.length;
}

/** Starts the looks; answers how to stop them. */
export function startExpiry(app: Needs): { stop: () => void } {
  let looking = false;
  const look = setInterval(() => {
    if (looking) return;
    looking = true;
    expireSandboxes(app)
      .catch((error: unknown) => app.log.error({ err: error }, "sandbox deadlines could not be looked at"))
      .finally(() => (looking = false));
  }, lookEveryMs);
  const forget = setInterval(() => {
    const before = new Date(app.clock.now().getTime() - keepTerminatedMs);
    deleteTerminatedBefore(app.db, before).catch((error: unknown) =>
      app.log.error({ err: error }, "old sandbox records could not be deleted"),
    );
  }, forgetEveryMs);
  return {
    stop: () => {
      clearInterval(look);
      clearInterval(forget);
    },
  };
}
