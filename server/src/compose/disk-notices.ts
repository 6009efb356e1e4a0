/** Audit entry and notification for a workspace whose machine was frozen or ended because it filled the disk. */
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import { notify } from "#accounts/notifications/notifications.ts";
import type { App } from "#app.ts";
import type { Announce } from "#machines/machines.ts";

export function announceDiskHold({ db }: Pick<App, "db">): Announce {
  return async ({ workspaceId, target }, { isEnded, freeBytes, writtenBytes, machine }) => {
    const detail = { machine: machine.id, free_bytes: freeBytes, written_bytes: writtenBytes };
    await db.transaction().execute(async (tx) => {
      const action = isEnded ? "machine.ended" : "machine.frozen";
      await recordActivity(tx, systemActor("disk guard"), action, target, workspaceId, detail);
      await notify(tx, {
        workspaceId,
        kind: "disk_short",
        title: `${target.label} was ${isEnded ? "ended" : "frozen"}: the server's disk is almost full`,
        body: isEnded
          ? "It wrote faster than any other machine on this server and could not be frozen."
          : "It wrote faster than any other machine on this server. It continues when the disk has room again, with its files and processes.",
        target,
      });
    });
  };
}
