/**
 * Workspaces for the rest of the server: the workspaces that an actor reaches, the workspace of a request, and whether
 * it accepts writes. Only the operator sets plan, tier and suspension.
 */
import type { App } from "../app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import type { Actor, ReachableWorkspace } from "./actor.ts";
import type { Plan, SandboxTier } from "./roles.ts";
import { recordActivity } from "./activity/activity.ts";
import { accountSuspended, insufficientRole, workspaceNotFound } from "./errors.ts";
import { clearActorCache } from "./find-actor.ts";

/** A request names a workspace by `personal` or a team's id. Null and absent mean the home workspace. */
export type WorkspaceParam = string | null | undefined;

/** Returns the default workspace: the workspace that a token is bound to, or else the personal workspace. */
export function homeWorkspace(actor: Pick<Actor, "workspaces">): ReachableWorkspace {
  const [home] = actor.workspaces;
  if (!home) throw workspaceNotFound();
  return home;
}

/** Returns the workspace of a request. An unreachable workspace causes the same error as a missing workspace. */
export function requireWorkspace(
  actor: Pick<Actor, "workspaces">,
  param: WorkspaceParam,
): ReachableWorkspace {
  if (param === null || param === undefined) return homeWorkspace(actor);
  const found = actor.workspaces.find((workspace) =>
    param === "personal" ? workspace.kind === "personal" : workspace.id === param.toLowerCase(),
  );
  if (!found) throw workspaceNotFound();
  return found;
}

/** Returns the workspace of a write. Refuses a suspended workspace, and a workspace in which the actor is a viewer. */
export function requireWritableWorkspace(actor: Actor, param: WorkspaceParam): ReachableWorkspace {
  const workspaces = [...actor.workspaces, ...(actor.viewed ?? [])];
  const workspace = requireWorkspace({ workspaces }, param);
  if (workspace.role === "viewer") throw insufficientRole("member");
  return requireNotSuspended(workspace);
}

export function requireNotSuspended(workspace: ReachableWorkspace): ReachableWorkspace {
  if (workspace.suspended) throw accountSuspended();
  return workspace;
}

/** Returns the ids to filter a list by: the named workspace, or all that the actor reaches. */
export function workspaceIds(actor: Actor, param?: WorkspaceParam): string[] {
  if (param !== null && param !== undefined) return [requireWorkspace(actor, param).id];
  return actor.workspaces.map(({ id }) => id);
}

/** Workspaces in which a reference resolves: all that the actor reaches for an id, the home workspace for a name. */
export function referableIds(actor: Actor, reference: string, idPrefix: string): string[] {
  const ids = workspaceIds(actor);
  return reference.startsWith(idPrefix) ? ids : ids.slice(0, 1);
}

/** Returns the workspace's name in a record on the wire. */
export function workspaceName(actor: Actor, id: string): string {
  return actor.workspaces.some((workspace) => workspace.id === id && workspace.kind === "personal")
    ? "personal"
    : id;
}

/** Sets the limits of a workspace; for the operator. */
export async function setPlan(
  app: Pick<App, "db">,
  actor: Actor,
  workspaceId: string,
  change: { plan?: Plan; sandboxTier?: SandboxTier },
): Promise<void> {
  await transaction(app.db, async (tx) => {
    await tx
      .updateTable("workspaces")
      .set({
        ...(change.plan === undefined ? {} : { plan: change.plan }),
        ...(change.sandboxTier === undefined ? {} : { sandbox_tier: change.sandboxTier }),
      })
      .where("id", "=", workspaceId)
      .execute();
    await recordActivity(
      tx,
      actor,
      "workspace.plan_changed",
      await targetOf(tx, workspaceId),
      workspaceId,
      change,
    );
  });
  clearActorCache(app);
}

/** Stops all changes in a workspace, or allows them again; for the operator. */
export async function setSuspended(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  workspaceId: string,
  suspended: boolean,
): Promise<void> {
  await transaction(app.db, async (tx) => {
    await tx
      .updateTable("workspaces")
      .set({ suspended_at: suspended ? app.clock.now() : null })
      .where("id", "=", workspaceId)
      .execute();
    const action = suspended ? "workspace.suspended" : "workspace.unsuspended";
    await recordActivity(tx, actor, action, await targetOf(tx, workspaceId), workspaceId);
  });
  clearActorCache(app);
}

async function targetOf(tx: Db, id: string): Promise<{ kind: string; id: string; label: string }> {
  const { name } = await tx
    .selectFrom("workspaces")
    .select("name")
    .where("id", "=", id)
    .executeTakeFirstOrThrow();
  return { kind: "workspace", id, label: name };
}
