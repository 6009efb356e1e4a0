/**
 * Notifications for people, such as a failed deployment or a verified domain. A notification is written once for the
 * workspace, in the transaction of its event. All members see it, and each has its own read state. A notification never
 * has a secret: output of builds and machines stays in their logs.
 */
import type { Db } from "#schema.ts";
import { defineError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import { workspaceIds } from "../workspaces.ts";
import * as store from "./store.ts";
import type { News } from "./news.ts";

export const notificationNotFound = defineError("notification_not_found", 404, () => "No such notification.");

/** Maximum of notifications that are kept for a workspace: more than people read, and a bound for the table. */
const keptPerWorkspace = 200;
const listed = 50;
const maxTitle = 200;
const maxBody = 2000;

/** Writes a notification to all members of the workspace. Call it in the transaction of the event. */
export async function notify(tx: Db, news: News): Promise<void> {
  await store.insert(tx, {
    ...news,
    title: truncate(news.title, maxTitle),
    body: truncate(news.body, maxBody),
  });
  await store.pruneBeyond(tx, news.workspaceId, keptPerWorkspace);
}

/** Deletes all notifications about these targets, read or not. */
export function deleteNotifications(
  tx: Db,
  workspaceId: string,
  targetIds: readonly string[],
): Promise<void> {
  return store.deleteOf(tx, workspaceId, targetIds);
}

/** Lists the newest notifications of all workspaces that the actor reaches. */
export function listNotifications({ db }: Pick<App, "db">, actor: Actor): Promise<store.NotificationRow[]> {
  return store.listNewest(db, actor.userId, workspaceIds(actor), listed);
}

export async function markRead(
  { db }: Pick<App, "db">,
  actor: Actor,
  id: string,
): Promise<store.NotificationRow> {
  const found = await store.find(db, actor.userId, workspaceIds(actor), id);
  if (!found) throw notificationNotFound();
  await store.insertReads(db, actor.userId, workspaceIds(actor), id);
  return { ...found, read: true };
}

/** Returns the number of notifications that were unread. */
export function markAllRead({ db }: Pick<App, "db">, actor: Actor): Promise<number> {
  return store.insertReads(db, actor.userId, workspaceIds(actor));
}

function truncate(text: string, length: number): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
