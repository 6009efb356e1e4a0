/** The actor of an agent: it acts for its workspace, on behalf of the workspace's owner. */
import type { Db } from "#schema.ts";
import type { Actor } from "./actor.ts";
import type { Scope } from "./roles.ts";

export interface Worker {
  workspaceId: string;
  /** `agents.worker_id`, which the audit log shows and the tokens of its runs carry. */
  workerId: string;
  /** The agent's name. */
  label: string;
}

/**
 * Returns the actor of an agent. Null scopes allow everything in the agent's workspace. Undefined if the workspace was
 * deleted.
 */
export async function workerActor(
  db: Db,
  { workspaceId, workerId, label }: Worker,
  scopes: readonly Scope[] | null,
): Promise<Actor | undefined> {
  const row = await db
    .selectFrom("workspaces as w")
    .leftJoin("team_members as m", (join) =>
      join.onRef("m.workspace_id", "=", "w.id").on("m.role", "=", "owner"),
    )
    .select(["w.id", "w.kind", "w.plan", "w.sandbox_tier", "w.suspended_at", "w.owner_user_id", "m.user_id"])
    .where("w.id", "=", workspaceId)
    .orderBy("m.created_at")
    .limit(1)
    .executeTakeFirst();
  const userId = row?.owner_user_id ?? row?.user_id;
  if (!row || !userId) return undefined;
  const workspace = {
    id: row.id,
    kind: row.kind,
    role: "owner" as const,
    plan: row.plan,
    sandboxTier: row.sandbox_tier,
    suspended: row.suspended_at !== null,
  };
  return {
    kind: "worker",
    id: workerId,
    label,
    role: "owner",
    userId,
    scopes,
    tokenId: null,
    workspaces: [workspace],
    ip: null,
  };
}
