import { sql } from "kysely";
import type { Db } from "#schema.ts";
import type { News } from "./news.ts";

export interface NotificationRow {
  id: string;
  kind: string;
  title: string;
  body: string;
  target: { kind: string; id: string; label: string };
  created_at: Date;
  /** True if the caller has read the notification. */
  read: boolean;
}

const among = (ids: readonly string[]) => sql<string>`any(${sql.val([...ids])}::uuid[])`;

export async function insert(tx: Db, { workspaceId, target, ...news }: News): Promise<void> {
  await tx
    .insertInto("notifications")
    .values({ ...news, workspace_id: workspaceId, target: JSON.stringify(target) })
    .execute();
}

export async function pruneBeyond(tx: Db, workspaceId: string, kept: number): Promise<void> {
  await tx
    .deleteFrom("notifications")
    .where("id", "in", (beyond) =>
      beyond
        .selectFrom("notifications")
        .select("id")
        .where("workspace_id", "=", workspaceId)
        .orderBy("created_at", "desc")
        .orderBy("id", "desc")
        .offset(kept),
    )
    .execute();
}

export async function deleteOf(tx: Db, workspaceId: string, targetIds: readonly string[]): Promise<void> {
  await tx
    .deleteFrom("notifications")
    .where("workspace_id", "=", workspaceId)
    .where(sql`target ->> 'id'`, "=", sql`any(${sql.val([...targetIds])}::text[])`)
    .execute();
}

const visible = (db: Db, userId: string, workspaceIds: readonly string[]) =>
  db
    .selectFrom("notifications as n")
    .leftJoin("notification_reads as r", (join) =>
      join.onRef("r.notification_id", "=", "n.id").on("r.user_id", "=", userId),
    )
    .select(["n.id", "n.kind", "n.title", "n.body", "n.target", "n.created_at"])
    .select(sql<boolean>`r.user_id is not null`.as("read"))
    .where("n.workspace_id", "=", among(workspaceIds));

export function listNewest(
  db: Db,
  userId: string,
  workspaceIds: readonly string[],
  limit: number,
): Promise<NotificationRow[]> {
  return visible(db, userId, workspaceIds)
    .orderBy("n.created_at", "desc")
    .orderBy("n.id", "desc")
    .limit(limit)
    .execute();
}

export function find(
  db: Db,
  userId: string,
  workspaceIds: readonly string[],
  id: string,
): Promise<NotificationRow | undefined> {
  return visible(db, userId, workspaceIds).where("n.id", "=", id).executeTakeFirst();
}

/** Marks a notification, or without `id` all of them, as read by the user. Returns the number that were unread. */
export async function insertReads(
  db: Db,
  userId: string,
  workspaceIds: readonly string[],
  id?: string,
): Promise<number> {
  const rows = await db
    .insertInto("notification_reads")
    .columns(["notification_id", "user_id"])
    .expression((from) => {
      const unread = from
        .selectFrom("notifications")
        .select(["id", sql<string>`${userId}::uuid`.as("user_id")])
        .where("workspace_id", "=", among(workspaceIds));
      return id === undefined ? unread : unread.where("id", "=", id);
    })
    .onConflict((conflict) => conflict.doNothing())
    .returning("notification_id")
    .execute();
  return rows.length;
}
