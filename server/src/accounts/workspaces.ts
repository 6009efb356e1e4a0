/**
 * Workspaces as the rest of the server asks for them: which of them an actor reaches, which one a request means, and
 * whether it may be written to. Plan, tier and suspension are set by the operator alone.
 */
import type { App } from "../app.ts";
import { type Db, transaction } from "#db/db.ts";
import type { Actor, Plan, ReachableWorkspace, SandboxTier } from "./actor.ts";
import { recordActivity } from "./activity/activity.ts";
import { accountSuspended, insufficientRole, workspaceNotFound } from "./errors.ts";
import { forgetActors } from "./find-actor.ts";

/** How a request names one: `personal` or a team's id; null and absent mean the home workspace. */
export type WorkspaceParam = string | null | undefined;

/** Where things go that name no workspace: the one a token is bound to, else the personal one. */
export function homeWorkspace(actor: Pick<Actor, "workspaces">): ReachableWorkspace {
  const [home] = actor.workspaces;
  if (!home) throw workspaceNotFound();
  return home;
}

/** The workspace a request means; one the actor can't reach answers as one that does not exist. */
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

/** The same for a change: a suspended workspace refuses it, and one of which the actor is a viewer. */
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

/** Ids to filter a list by: one workspace where it is named, else all the actor reaches. */
export function workspaceIds(actor: Actor, param?: WorkspaceParam): string[] {
  if (param !== null && param !== undefined) return [requireWorkspace(actor, param).id];
  return actor.workspaces.map(({ id }) => id);
}

/** Workspaces in which a reference resolves: all that the actor reaches for an id, the home workspace for a name. */
export function referableIds(actor: Actor, reference: string, idPrefix: string): string[] {
  const ids = workspaceIds(actor);
  return reference.startsWith(idPrefix) ? ids : ids.slice(0, 1);
}

/** How a record names its workspace on the wire. */
export function workspaceName(actor: Actor, id: string): string {
  return actor.workspaces.some((workspace) => workspace.id === id && workspace.kind === "personal")
    ? "personal"
    : id;
}

/** Operator: what a workspace may use. */
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
  forgetActors(app);
}

/** Operator: stops all changes in a workspace, or allows them again. */
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
  forgetActors(app);
}

async function targetOf(tx: Db, id: string): Promise<{ kind: string; id: string; label: string }> {
  const { name } = await tx
    .selectFrom("workspaces")
    .select("name")
    .where("id", "=", id)
    .executeTakeFirstOrThrow();
  return { kind: "workspace", id, label: name };
}
