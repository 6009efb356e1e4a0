/**
 * Notifications for plan limits. The transaction of a refused request is rolled back. So the notification is written
 * after the refusal, at most once a day for each limit and workspace.
 */
import { sql } from "kysely";
import { transaction } from "#db/db.ts";
import { DomainError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import { LimitReached } from "../errors.ts";
import { notify } from "./notifications.ts";

interface RouteWithHandler {
  handler: (input: never) => unknown;
}

/** Returns the routes with handlers that notify the workspace of a limit before they rethrow the refusal. */
export function withLimitNotifications<R extends RouteWithHandler>(
  app: Pick<App, "db" | "log">,
  routes: readonly R[],
): R[] {
  return routes.map((route) => ({
    ...route,
    handler: async (input: never) => {
      try {
        return await route.handler(input);
      } catch (error) {
        await notifyOfLimit(app, error).catch((failure: unknown) =>
          app.log.warn({ err: failure }, "could not write a notification about a limit"),
        );
        throw error;
      }
    },
  }));
}

async function notifyOfLimit({ db }: Pick<App, "db">, error: unknown): Promise<void> {
  if (!(error instanceof DomainError) || !(error.cause instanceof LimitReached)) return;
  const { workspaceId, limit } = error.cause;
  const words = limit.replaceAll("_", " ");
  await transaction(db, async (tx) => {
    await sql`select pg_advisory_xact_lock(hashtextextended(${`${workspaceId} ${limit}`}, 17))`.execute(tx);
    const told = await tx
      .selectFrom("notifications")
      .select("id")
      .where("workspace_id", "=", workspaceId)
      .where("kind", "=", "limit_reached")
      .where(sql<string>`target ->> 'id'`, "=", limit)
      .where("created_at", ">", sql<Date>`now() - interval '1 day'`)
      .executeTakeFirst();
    if (told) return;
    await notify(tx, {
      workspaceId,
      kind: "limit_reached",
      title: `The plan's limit of ${words} is reached`,
      body: `${error.detail} Delete some, or change the plan.`,
      target: { kind: "limit", id: limit, label: words },
    });
  });
}
