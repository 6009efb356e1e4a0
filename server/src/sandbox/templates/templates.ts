/**
 * Custom templates: images of a workspace, from which its sandboxes boot. A template is one build and never changes.
 * Successive builds share a name, and tags select one of them. This folder owns the record, the tags and the resolution
 * of a create's `template`; builds/ makes the image. A tag always points to a ready build, and sandboxes and snapshots
 * outlive their template.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { openCursor, sealCursor } from "../cursor.ts";
import { tagNotFound, templateNotFound, templateNotReady } from "./errors.ts";
import { type Template, type TemplateList, toTemplate } from "./schema.ts";
import {
  countTemplateRows,
  deleteTag,
  findTemplate,
  holdTemplate,
  listTemplates,
  lockTags,
  putTag,
  type TemplateRow,
} from "./store.ts";

export { holdTemplate };

export async function getRow(db: Db, actor: Actor, id: string): Promise<TemplateRow> {
  const row = await findTemplate(db, id, workspaceIds(actor));
  if (!row) throw templateNotFound();
  return row;
}

export async function getTemplate(app: Pick<App, "db">, actor: Actor, id: string): Promise<Template> {
  return toTemplate(await getRow(app.db, actor, id));
}

export async function list(
  app: Pick<App, "db" | "secrets">,
  actor: Actor,
  query: { cursor?: string | undefined; limit: number },
): Promise<TemplateList> {
  const rows = await listTemplates(app.db, {
    workspaceIds: workspaceIds(actor),
    before: query.cursor === undefined ? undefined : openCursor(app, actor, "templates", query.cursor),
    limit: query.limit + 1,
  });
  const page = rows.slice(0, query.limit);
  const last = page.at(-1);
  return {
    items: page.map(toTemplate),
    next_cursor:
      rows.length > query.limit && last
        ? sealCursor(app, actor, "templates", { createdAt: last.created_at_text, id: last.id })
        : null,
  };
}

/** Number of a workspace's templates. */
export function countTemplates(db: Db, workspaceId: string): Promise<number> {
  return countTemplateRows(db, workspaceId);
}

/** Moves the tag to this build, away from any other build of the same name. */
export function assignTag(app: Pick<App, "db">, actor: Actor, id: string, tag: string): Promise<Template> {
  return app.db.transaction().execute(async (tx) => {
    const row = await getRow(tx, actor, id);
    await lockTags(tx, row.workspace_id);
    if (row.status !== "ready") throw templateNotReady(row.status);
    await putTag(tx, row, tag);
    await recordActivity(tx, actor, "template.tagged", target(row), row.workspace_id, { tag });
    return toTemplate(await getRow(tx, actor, id));
  });
}

export async function removeTag(app: Pick<App, "db">, actor: Actor, id: string, tag: string): Promise<void> {
  await app.db.transaction().execute(async (tx) => {
    const row = await getRow(tx, actor, id);
    await lockTags(tx, row.workspace_id);
    if (!(await deleteTag(tx, id, tag))) throw tagNotFound();
    await recordActivity(tx, actor, "template.untagged", target(row), row.workspace_id, { tag });
  });
}

export function target({ id, name }: Pick<TemplateRow, "id" | "name">) {
  return { kind: "template", id, label: name };
}
