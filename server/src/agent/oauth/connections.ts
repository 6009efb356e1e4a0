/**
 * Connections: what people signed in to, so that an agent may act for them there. This folder owns their tokens, and
 * promises that these are in no answer, log or event; that they go to the toolset they were given for alone; that who
 * signs in is who opened the link; and that of many who need newer tokens at once one asks for them.
 *
 * A sign-in: `start` makes a link for one person (`links.ts`). Opened, it finds out who signs people in
 * (`discovery.ts`) and as whom we ask (`clients.ts`), and sends the browser there with a cookie (`open.ts`). The answer
 * comes back to `callback.ts`. From then on `access.ts` has a token for whoever calls the toolset,
 * and notes what a server wants beyond it, for the next link to ask.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { getToolset, lockReachable, target } from "../toolsets/toolsets.ts";
import { connectionNotFound } from "./errors.ts";
import { forgetConnections } from "./forget.ts";
import { type Connection, toConnection } from "./schema.ts";
import { listConnections } from "./store.ts";
import { owner } from "./flow/sign-in-subject.ts";

type Needs = Pick<App, "db">;

export async function list(app: Needs, actor: Actor, toolsetId: string): Promise<{ items: Connection[] }> {
  const { id } = await getToolset(app.db, actor, toolsetId);
  return { items: (await listConnections(app.db, id)).map(toConnection) };
}

/** The owner's; nothing happens where there is none. */
export async function disconnect(app: Needs, actor: Actor, toolsetId: string): Promise<void> {
  await forget(app, actor, toolsetId, owner);
}

export async function remove(
  app: Needs,
  actor: Actor,
  { toolset_id, end_user_id }: { toolset_id: string; end_user_id: string },
): Promise<void> {
  if ((await forget(app, actor, toolset_id, end_user_id)) === 0) throw connectionNotFound();
}

async function forget(app: Needs, actor: Actor, toolsetId: string, endUserId: string): Promise<number> {
  return app.db.transaction().execute(async (tx) => {
    const toolset = await lockReachable(tx, actor, toolsetId);
    const count = await forgetConnections(tx, [toolset.id], endUserId);
    if (count > 0) {
      // Whose it was is not said: the entry outlives the end user's erasure.
      const detail = { of: endUserId === owner ? "owner" : "end_user" };
      await recordActivity(
        tx,
        actor,
        "agent_connection.deleted",
        target(toolset),
        toolset.workspace_id,
        detail,
      );
    }
    return count;
  });
}
