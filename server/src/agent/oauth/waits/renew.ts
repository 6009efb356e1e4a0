/**
 * Renews the links of a run that waits for a sign-in. A link lives for ten minutes and works once, and a wait may be
 * longer. A request that reads the run replaces links that no longer work.
 */
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import { changeFromOutside } from "#agent/runs/journal/journal.ts";
import { lockRun } from "#agent/runs/store.ts";
import { offerSignIn, isUnopened } from "../flow/sign-in-link.ts";
import type { SignInWait } from "./waits.ts";

/** Minimum lifetime of a kept link. A link with less time left is replaced. */
const leftMinMs = 60_000;

/** Link of a run's last event `connection.auth_required` for a toolset. */
interface KnownLink {
  toolset_id: string;
  authorize_url: string;
  expires_in: number;
  at: string;
}

/** Replaces links that no longer work. Each new link is an event of the run. */
export async function renewLinks(
  app: Pick<App, "db" | "config" | "clock">,
  runId: string,
  waits: readonly SignInWait[],
  links: readonly KnownLink[],
): Promise<void> {
  const byToolset = new Map(waits.map((wait) => [wait.toolset_id, wait]));
  for (const { toolset_id: id, end_user_id: who } of byToolset.values()) {
    const link = links.find((one) => one.toolset_id === id);
    if (link && (await isUsable(app, link))) continue;
    // No link is offered if the toolset was deleted meanwhile. The next read cancels the wait.
    await offerSignIn(app, { id }, who, (fresh, store) =>
      transaction(app.db, async (tx) => {
        const run = await lockRun(tx, runId);
        if (run?.status !== "pending_approval") return;
        const data = { toolset_id: id, end_user_id: who, ...fresh };
        await changeFromOutside(
          tx,
          runId,
          [{ type: "connection.auth_required", at: app.clock.now(), data }],
          {},
        );
        await store(tx);
      }),
    );
  }
}

async function isUsable(app: Pick<App, "db" | "clock">, link: KnownLink): Promise<boolean> {
  const leftMs = Date.parse(link.at) + link.expires_in * 1000 - app.clock.now().getTime();
  return leftMs >= leftMinMs && (await isUnopened(app, link));
}
