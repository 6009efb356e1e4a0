/**
 * Connections: OAuth tokens with which an agent acts for a person at a tool server. This folder owns the tokens. The
 * folder promises:
 * - Tokens never appear in a response, log or event.
 * - A token goes only to the toolset that it was issued for.
 * - Only the browser that opened a link can complete its sign-in.
 * - Concurrent calls send one refresh request.
 *
 * The authorization code flow: `createSignInLink` creates a link for one person (`flow/links.ts`). When a browser
 * opens the link, `flow/open-link.ts` discovers the provider (`provider/discovery.ts`) and selects an OAuth client
 * (`provider/clients.ts`). It then sets a cookie and redirects to the provider. The provider redirects back to
 * `flow/callback.ts`. From then on, `access.ts` returns access tokens for the toolset's calls. `access.ts` also
 * records the scopes that a server requires in addition, for the next sign-in.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { getToolset, lockReachable, target } from "../toolsets/toolsets.ts";
import { connectionNotFound } from "./errors.ts";
import { revokeConnections } from "./revocation.ts";
import { type Connection, toConnection } from "./schema.ts";
import { listConnections } from "./store.ts";
import { owner } from "./flow/sign-in-subject.ts";

type Needs = Pick<App, "db">;

export async function list(app: Needs, actor: Actor, toolsetId: string): Promise<{ items: Connection[] }> {
  const { id } = await getToolset(app.db, actor, toolsetId);
  return { items: (await listConnections(app.db, id)).map(toConnection) };
}

/** Deletes the owner's connection. Does nothing if the owner has none. */
export async function disconnect(app: Needs, actor: Actor, toolsetId: string): Promise<void> {
  await deleteAndRecord(app, actor, toolsetId, owner);
}

export async function remove(
  app: Needs,
  actor: Actor,
  { toolset_id, end_user_id }: { toolset_id: string; end_user_id: string },
): Promise<void> {
  if ((await deleteAndRecord(app, actor, toolset_id, end_user_id)) === 0) throw connectionNotFound();
}

async function deleteAndRecord(
  app: Needs,
  actor: Actor,
  toolsetId: string,
  endUserId: string,
): Promise<number> {
  return app.db.transaction().execute(async (tx) => {
    const toolset = await lockReachable(tx, actor, toolsetId);
    const count = await revokeConnections(tx, [toolset.id], endUserId);
    if (count > 0) {
      // The activity entry does not name the end user, because the entry outlives that user's erasure.
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
