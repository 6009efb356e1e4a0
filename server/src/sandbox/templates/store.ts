/**
 * All SQL of the templates tables. The workspaces a caller can reach are an argument of the functions for callers.
 */
import { type Insertable, type Selectable, sql } from "kysely";
import type { ProcessDefaults } from "#builds/tables.ts";
import type { Db } from "#schema.ts";
import type { TemplatesTable } from "./tables.ts";

/** A template and its tags. */
export type TemplateRow = Selectable<TemplatesTable> & { tags: string[] };

const among = (workspaceIds: readonly string[]) => sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`;

const tags = sql<string[]>`(
  select coalesce(array_agg(t.tag order by t.tag), array[]::text[])
  from template_tags t where t.template_id = templates.id
)`.as("tags");

/** Counts a workspace's templates, and blocks new templates until this transaction ends. */
export async function lockAndCountTemplates(tx: Db, workspaceId: string): Promise<number> {
  await lockTags(tx, workspaceId);
  return countTemplateRows(tx, workspaceId);
}

export async function countTemplateRows(db: Db, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("templates")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Serializes changes of a workspace's names and tags. */
export async function lockTags(tx: Db, workspaceId: string): Promise<void> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 5))`.execute(tx);
}

export async function insertTemplate(
  tx: Db,
  template: Omit<
    Insertable<TemplatesTable>,
    "status" | "error_message" | "size_bytes" | "contents" | "substituted" | "substitute" | "built_at"
  >,
): Promise<TemplateRow> {
  const row = await tx
    .insertInto("templates")
    .values({ ...template, status: "building" })
    .returningAll()
    .executeTakeFirstOrThrow();
  return { ...row, tags: [] };
}

export function findTemplate(
  db: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<TemplateRow | undefined> {
  return db
    .selectFrom("templates")
    .selectAll()
    .select(tags)
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .executeTakeFirst();
}

export function findTagged(
  db: Db,
  workspaceId: string,
  name: string,
  tag: string,
): Promise<TemplateRow | undefined> {
  return db
    .selectFrom("templates")
    .innerJoin("template_tags", "template_tags.template_id", "templates.id")
    .selectAll("templates")
    .select(tags)
    .where("template_tags.workspace_id", "=", workspaceId)
    .where("template_tags.name", "=", name)
    .where("template_tags.tag", "=", tag)
    .executeTakeFirst();
}

/** Finds the newest build of the name, in any state. */
export function findNewest(db: Db, workspaceId: string, name: string): Promise<TemplateRow | undefined> {
  return db
    .selectFrom("templates")
    .selectAll()
    .select(tags)
    .where("workspace_id", "=", workspaceId)
    .where("name", "=", name)
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .limit(1)
    .executeTakeFirst();
}

/** Lists the names of a workspace's templates, newest first, each once. */
export async function listNames(db: Db, workspaceId: string, limit: number): Promise<string[]> {
  const rows = await db
    .selectFrom("templates")
    .select("name")
    .where("workspace_id", "=", workspaceId)
    .groupBy("name")
    .orderBy(sql`max(created_at)`, "desc")
    .limit(limit)
    .execute();
  return rows.map(({ name }) => name);
}

/** True if the template is ready; its deletion waits for the end of this transaction. */
export async function holdTemplate(tx: Db, id: string): Promise<boolean> {
  const row = await tx
    .selectFrom("templates")
    .select("id")
    .where("id", "=", id)
    .where("status", "=", "ready")
    .forKeyShare()
    .executeTakeFirst();
  return row !== undefined;
}

/** Lists templates, newest first. `created_at_text` keeps the microseconds for the cursor, which a Date drops. */
export function listTemplates(
  db: Db,
  filter: {
    workspaceIds: readonly string[];
    before: { createdAt: string; id: string } | undefined;
    limit: number;
  },
): Promise<(TemplateRow & { created_at_text: string })[]> {
  let query = db
    .selectFrom("templates")
    .selectAll()
    .select([tags, sql<string>`created_at::text`.as("created_at_text")])
    .where("workspace_id", "=", among(filter.workspaceIds))
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .limit(filter.limit);
  if (filter.before) {
    const { createdAt, id } = filter.before;
    query = query.where(sql<boolean>`(created_at, id) < (${createdAt}::timestamptz, ${id})`);
  }
  return query.execute();
}

/** Records the result of a template's build. Undefined if the template was deleted. */
export async function endTemplate(
  tx: Db,
  id: string,
  end:
    | {
        status: "ready";
        sizeBytes: number;
        contents: Record<string, string>;
        substituted: boolean;
        substitute: string | null;
        /** Undefined keeps the defaults of the base. */
        defaults: ProcessDefaults | undefined;
        at: Date;
      }
    | { status: "failed"; error: string },
): Promise<Selectable<TemplatesTable> | undefined> {
  return tx
    .updateTable("templates")
    .set(
      end.status === "failed"
        ? { status: "failed", error_message: end.error }
        : {
            status: "ready",
            size_bytes: end.sizeBytes,
            contents: JSON.stringify(end.contents),
            substituted: end.substituted,
            substitute: end.substitute,
            ...(end.defaults ? { process_defaults: JSON.stringify(end.defaults) } : {}),
            built_at: end.at,
          },
    )
    .where("id", "=", id)
    .where("status", "=", "building")
    .returningAll()
    .executeTakeFirst();
}

export async function hasOtherReady(tx: Db, { workspace_id, name, id }: Selectable<TemplatesTable>) {
  const row = await tx
    .selectFrom("templates")
    .select("id")
    .where("workspace_id", "=", workspace_id)
    .where("name", "=", name)
    .where("status", "=", "ready")
    .where("id", "<>", id)
    .limit(1)
    .executeTakeFirst();
  return row !== undefined;
}

/** Moves the tag to this build, from any other build. */
export async function putTag(
  tx: Db,
  template: Pick<TemplatesTable, "id" | "workspace_id" | "name">,
  tag: string,
): Promise<void> {
  const { id, workspace_id, name } = template;
  await tx
    .insertInto("template_tags")
    .values({ workspace_id, name, tag, template_id: id })
    .onConflict((conflict) =>
      conflict.columns(["workspace_id", "name", "tag"]).doUpdateSet({ template_id: id }),
    )
    .execute();
}

export async function deleteTag(tx: Db, templateId: string, tag: string): Promise<boolean> {
  const { numDeletedRows } = await tx
    .deleteFrom("template_tags")
    .where("template_id", "=", templateId)
    .where("tag", "=", tag)
    .executeTakeFirst();
  return numDeletedRows > 0n;
}

export function deleteTemplate(
  tx: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<Selectable<TemplatesTable> | undefined> {
  return tx
    .deleteFrom("templates")
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .returningAll()
    .executeTakeFirst();
}
