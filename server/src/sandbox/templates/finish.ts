/** Updates a template when its build has ended. */
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { BuildOwner } from "#builds/builds.ts";
import { byWhom, recordEvent } from "../events/events.ts";
import { endTemplate, hasOtherReady, lockTags, putTag } from "./store.ts";

/** The first ready build of a name gets this tag automatically. */
const defaultTag = "default";

export function templateBuilds(app: Pick<App, "clock">): BuildOwner {
  return {
    async ended(tx, id, end) {
      const at = app.clock.now();
      const row = await endTemplate(
        tx,
        id,
        end.status === "failed"
          ? { status: "failed", error: end.error }
          : {
              status: "ready",
              sizeBytes: end.image.sizeBytes,
              contents: end.image.contents,
              substituted: end.image.substituted,
              substitute: end.image.substitute,
              defaults: end.defaults,
              at,
            },
      );
      if (!row) return;
      await lockTags(tx, row.workspace_id);
      if (row.status === "ready") {
        const tags = new Set(row.wanted_tags);
        if (!(await hasOtherReady(tx, row))) tags.add(defaultTag);
        for (const tag of tags) await putTag(tx, row, tag);
      }
      const actor = systemActor("builds");
      const { name, status, error_message } = row;
      const subject = { template_id: id, name, status, error_message };
      await recordEvent(tx, {
        workspaceId: row.workspace_id,
        event: "template.build_finished",
        sandboxId: null,
        subject,
        at,
        outcome: status === "ready" ? "ok" : "failed",
        summary: status === "ready" ? `Template ${name} is ready.` : `The build of template ${name} failed.`,
        detail: { ...byWhom(actor), ...subject },
        actor,
      });
    },
  };
}
