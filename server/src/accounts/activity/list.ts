import { sql } from "kysely";
import { defineError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import { workspaceIds, workspaceName, type WorkspaceParam } from "../workspaces.ts";

export const activityCursorInvalid = defineError(
  "cursor_invalid",
  422,
  () => "cursor: is not a cursor of this list; use `next_cursor` of the previous page.",
);

export interface ActivityQuery {
  skip: number;
  limit: number;
  /** `all` selects the whole installation, and only the operator may pass it. */
  workspace?: WorkspaceParam;
  /** `user` selects people and their own tokens; a UUID selects the worker with this id. */
  actor?: string | undefined;
  /** Id or e-mail address of a person. */
  person?: string | undefined;
  /** A whole action, such as `project.created`, or only its noun. */
  action?: string | undefined;
  target?: string | undefined;
  from?: string | undefined;
  to?: string | undefined;
  access?: "exclude" | "include" | "only" | undefined;
  cursor?: string | undefined;
}

/** Lists the entries of the workspaces that the caller reaches, newest first. */
export async function listActivity({ db }: Pick<App, "db">, actor: Actor, query: ActivityQuery) {
  const entries = filterEntries(db, actor, query);
  const after = query.cursor === undefined ? undefined : parseCursor(query.cursor);
  const page = after
    ? entries.where(sql<boolean>`(at, id) < (${after.at}::timestamptz, ${after.id}::uuid)`)
    : entries.offset(query.skip);
  const [rows, counted] = await Promise.all([
    page
      .selectAll()
      // The text keeps the microseconds, which a Date drops.
      .select(sql<string>`at::text`.as("at_text"))
      .select(personBehind.as("user"))
      .orderBy("at", "desc")
      .orderBy("id", "desc")
      .limit(query.limit)
      .execute(),
    entries.select(({ fn }) => fn.countAll<number>().as("total")).executeTakeFirstOrThrow(),
  ]);
  const items = rows.map((row) => ({
    id: row.id,
    at: row.at.toISOString(),
    actor: {
      kind: row.actor_kind,
      id: row.actor_id,
      label: row.actor_label,
      role: row.actor_role,
      user: row.user,
    },
    person: row.person_id === null ? null : { id: row.person_id, email: row.person_email },
    action: row.action,
    target: { kind: row.target_kind, id: row.target_id, label: row.target_label },
    workspace: row.workspace_id === null ? null : workspaceName(actor, row.workspace_id),
    ip: row.ip,
    detail: row.detail,
  }));
  const last = rows.length === query.limit ? rows.at(-1) : undefined;
  return {
    items,
    total: counted.total,
    skip: after ? 0 : query.skip,
    limit: query.limit,
    next_cursor: last === undefined ? null : cursorOf(last.at_text, last.id),
  };
}

/** Reads the person at the time of the request, so that the name of a deleted account does not stay. */
const personBehind = sql<{ id: string; name: string; email: string } | null>`(
  select json_build_object('id', u.id, 'name', u.name, 'email', u.email) from users u where u.id = activity.person_id
)`;

function filterEntries(db: App["db"], actor: Actor, query: ActivityQuery) {
  let entries = db.selectFrom("activity");
  if (query.workspace !== "all" || !mayReadAll(actor)) {
    const ids = workspaceIds(actor, query.workspace);
    entries = entries.where("workspace_id", "=", sql<string>`any(${sql.val(ids)}::uuid[])`);
  }
  if (query.access !== "include") entries = entries.where("is_access", "=", query.access === "only");
  if (query.actor === "user") entries = entries.where("actor_kind", "in", ["user", "api_token"]);
  else if (query.actor !== undefined) {
    entries = entries.where("actor_kind", "=", "worker").where("actor_id", "=", query.actor.toLowerCase());
  }
  if (query.person !== undefined) {
    const person = query.person.toLowerCase();
    const [own, target] = person.includes("@")
      ? (["person_email", "target_label"] as const)
      : (["person_id", "target_id"] as const);
    // Refused sign-ins have no person as actor; the person is their target.
    entries = entries.where((where) =>
      where.or([
        where(own, "=", person),
        where.and([where("target_kind", "=", "user"), where(target, "=", person)]),
      ]),
    );
  }
  if (query.action?.includes(".")) entries = entries.where("action", "=", query.action);
  else if (query.action !== undefined) {
    entries = entries.where(sql<boolean>`split_part(action, '.', 1) = ${query.action}`);
  }
  if (query.target !== undefined) entries = entries.where("target_id", "=", query.target);
  if (query.from !== undefined) entries = entries.where("at", ">=", new Date(query.from));
  if (query.to !== undefined) entries = entries.where("at", "<", new Date(query.to));
  return entries;
}

/** True for the operator's session or full-access token. A token bound to a team reaches only that team. */
const mayReadAll = ({ isOperator, scopes, workspaces }: Actor): boolean =>
  isOperator === true && scopes === null && workspaces.some(({ kind }) => kind === "personal");

const cursorOf = (at: string, id: string): string => Buffer.from(`${at} ${id}`).toString("base64url");

function parseCursor(cursor: string): { at: string; id: string } {
  const [, at, id] =
    /^((?!0000)\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?[+-](?:0\d|1[0-5])(?::[0-5]\d){0,2}) ([0-9a-f-]{36})$/.exec(
      Buffer.from(cursor, "base64url").toString("latin1"),
    ) ?? [];
  // An impossible date, such as February 31, is refused here, before the database fails on it.
  if (at === undefined || id === undefined || !isDate(at) || !isUuid(id)) throw activityCursorInvalid();
  return { at, id };
}

/** JavaScript reads February 31 as March 3. */
const isDate = (text: string): boolean => {
  const local = text.slice(0, 19).replace(" ", "T");
  const at = new Date(`${local}Z`);
  return !Number.isNaN(at.getTime()) && at.toISOString().startsWith(local);
};
const isUuid = (text: string): boolean => /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text);
