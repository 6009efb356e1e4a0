import { z } from "zod";
import { defineRoute, type Route } from "#http/define-route.ts";
import type { App } from "../../app.ts";
import {
  listNotifications,
  markAllRead,
  markRead,
  notificationKinds,
  notificationNotFound,
} from "./notifications.ts";
import type { NotificationRow } from "./store.ts";

export const NotificationResponse = z
  .object({
    id: z.guid(),
    kind: z.enum(notificationKinds),
    title: z.string(),
    body: z.string(),
    target: z.object({ kind: z.string(), id: z.string(), label: z.string() }),
    read: z.boolean().describe("By the caller; others of the team have read it for themselves."),
    created_at: z.iso.datetime(),
  })
  .meta({ id: "NotificationResponse" });

const common = { api: "platform", tag: "Notifications" } as const;

export const notificationRoutes = (app: Pick<App, "db">): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/notifications",
    operationId: "listNotifications",
    summary: "The 50 newest notifications, newest first",
    scope: "platform:read",
    responses: { 200: z.array(NotificationResponse) },
    handler: async ({ actor }) => (await listNotifications(app, actor)).map(toNotification),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path: "/api/v1/notifications/{notification_id}/read",
    operationId: "markNotificationRead",
    whileSuspended: true,
    allowsViewers: true,
    summary: "Mark a notification as read",
    scope: "platform:write",
    params: z.object({ notification_id: z.guid() }),
    responses: { 200: NotificationResponse },
    errors: [notificationNotFound],
    handler: async ({ actor, params }) => toNotification(await markRead(app, actor, params.notification_id)),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/api/v1/notifications/read-all",
    operationId: "markAllNotificationsRead",
    whileSuspended: true,
    allowsViewers: true,
    summary: "Mark all notifications as read",
    scope: "platform:write",
    responses: { 200: z.object({ updated: z.int().describe("How many were unread.") }) },
    handler: async ({ actor }) => ({ updated: await markAllRead(app, actor) }),
  }),
];

function toNotification(row: NotificationRow) {
  return { ...row, created_at: row.created_at.toISOString() };
}
