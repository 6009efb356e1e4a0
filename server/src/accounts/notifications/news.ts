/** Kinds of notifications, and the fields that a caller sets. */

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
  /** A single line. */
  title: string;
  /** The event in a sentence, or how to solve the problem. */
  body: string;
  target: { kind: string; id: string; label: string };
}
