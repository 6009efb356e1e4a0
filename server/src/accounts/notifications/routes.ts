import { z } from "zod";
import { defineRoute, type Route } from "#http/define-route.ts";
import type { App } from "../../app.ts";
import { listNotifications, markAllRead, markRead, notificationNotFound } from "./notifications.ts";
import { notificationKinds } from "./news.ts";
import type { NotificationRow } from "./store.ts";

const NotificationResponse = z
  .object({
    id: z.guid().describe("Id (UUID) of the notification."),
    kind: z
      .enum(notificationKinds)
      .describe("Event that caused the notification, such as `deploy_failed` or `limit_reached`."),
    title: z.string().describe("Event in one line, at most 200 characters."),
    body: z
      .string()
      .describe("Details and remedy in a few sentences, at most 2000 characters. Never holds secrets."),
    target: z
      .object({
        kind: z.string().describe("Kind of the object, such as `project`, `addon`, `function` or `limit`."),
        id: z.string().describe("Id of the object. For a limit its name, such as `api_tokens`."),
        label: z.string().describe("Name of the object at that time."),
      })
      .describe("Object that the notification is about."),
    read: z.boolean().describe("True if the caller has read it. Each member of a team has an own state."),
    created_at: z.iso.datetime().describe("Time of the notification."),
  })
  .meta({ id: "NotificationResponse" });

const common = { api: "platform", tag: "Notifications" } as const;

export const notificationRoutes = (app: Pick<App, "db">): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/notifications",
    operationId: "listNotifications",
    summary: "List notifications",
    description:
      "Returns the newest 50 notifications of all workspaces that the caller reaches, newest first.",
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
    params: z.object({
      notification_id: z.guid().describe("Id (UUID) of the notification, as in the list."),
    }),
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
    responses: { 200: z.object({ updated: z.int().describe("Number of notifications that were unread.") }) },
    handler: async ({ actor }) => ({ updated: await markAllRead(app, actor) }),
  }),
];

function toNotification(row: NotificationRow) {
  return { ...row, created_at: row.created_at.toISOString() };
}
