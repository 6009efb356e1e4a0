/**
 * News for people: a deployment failed, a domain was verified. A notification is written in the transaction of what it
 * tells, once for the workspace; everyone who reaches the workspace sees it, and each has read it for themselves. It
 * never holds a secret: text that comes out of builds and machines stays in their logs.
 */
import type { Db } from "#db/db.ts";
import { defineError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import { workspaceIds } from "../workspaces.ts";
import * as store from "./store.ts";

export const notificationNotFound = defineError("notification_not_found", 404, () => "No such notification.");

export const notificationKinds = [
  "deploy_succeeded",
  "deploy_failed",
  "domain_verified",
  "domain_failed",
  "backup_failed",
  "webhook_disabled",
  "schedule_disabled",
  "approval_pending",
  "limit_reached",
  "out_of_memory",
  "disk_short",
  "app_crashed",
  "image_findings",
  "team_invitation",
] as const;
export type NotificationKind = (typeof notificationKinds)[number];

export interface News {
  workspaceId: string;
  kind: NotificationKind;
  /** One line. */
  title: string;
  /** What to do about it, or what happened in a sentence. */
  body: string;
  target: { kind: string; id: string; label: string };
}

/** More than anybody reads, less than a table that grows for ever. */
const keptPerWorkspace = 200;
const listed = 50;
const maxTitle = 200;
const maxBody = 2000;

/** To be called in the transaction of what it tells. */
export async function notify(tx: Db, news: News): Promise<void> {
  await store.insert(tx, { ...news, title: cut(news.title, maxTitle), body: cut(news.body, maxBody) });
  await store.dropBeyond(tx, news.workspaceId, keptPerWorkspace);
}

/** What was told of these goes, whoever has read it. */
export function forgetNews(tx: Db, workspaceId: string, targetIds: readonly string[]): Promise<void> {
  return store.deleteOf(tx, workspaceId, targetIds);
}

/** The newest of all workspaces the actor reaches. */
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

/** How many were unread. */
export function markAllRead({ db }: Pick<App, "db">, actor: Actor): Promise<number> {
  return store.insertReads(db, actor.userId, workspaceIds(actor));
}

function cut(text: string, length: number): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
