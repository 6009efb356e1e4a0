/**
 * The audit log: actor, action and target of each change, written in the transaction of the change, so that both commit
 * together. Names are copied, because an entry outlives its target. An entry never has a secret: fields of `detail`
 * whose name may mark a secret are dropped.
 */
import { sql } from "kysely";
import type { Db } from "#schema.ts";
import type { Actor } from "../actor.ts";

export interface ActivityTarget {
  kind: string;
  id: string | null;
  label: string | null;
}

/** Label in the audit log in place of a deleted person's e-mail address. */
export const deletedLabel = "deleted account";

/**
 * Records an action, such as "project.created" (`<noun>.<past participle>`), and passes it to the request's
 * `onActivity` callback.
 */
export async function recordActivity(
  tx: Db,
  actor: Actor,
  action: string,
  target: ActivityTarget,
  workspaceId: string | null,
  detail: object = {},
): Promise<void> {
  const said = withoutSecrets(detail) as Record<string, unknown>;
  const personId = actor.kind === "system" ? null : actor.userId;
  await tx
    .insertInto("activity")
    .values({
      actor_kind: actor.kind,
      actor_id: actor.id,
      actor_label: actor.label,
      actor_role: roleIn(actor, workspaceId),
      action,
      target_kind: target.kind,
      target_id: target.id,
      target_label: target.label,
      workspace_id: workspaceId,
      ip: actor.ip,
      detail: JSON.stringify(said),
      person_id: personId,
      person_email: sql<string | null>`(select email from users where id = ${personId}::uuid)`,
    })
    .execute();
  await actor.onActivity?.(tx, { action, targetId: target.id, detail: said });
}

/**
 * Removes ids and details of these targets from their entries. The action and the actor stay. `hasNames` is true if the
 * labels are names that people gave; the labels are then removed too.
 */
export async function eraseTargets(
  tx: Db,
  workspaceId: string,
  ids: readonly string[],
  { hasNames = false }: { hasNames?: boolean } = {},
): Promise<void> {
  await tx
    .updateTable("activity")
    .set({ target_id: null, detail: "{}", ...(hasNames ? { target_label: null } : {}) })
    .where("workspace_id", "=", workspaceId)
    .where("target_id", "=", sql<string>`any(${sql.val([...ids])}::text[])`)
    .execute();
}

/** Removes the details of entries whose `field` has one of these values. The action, actor and target stay. */
export async function eraseDetails(
  tx: Db,
  workspaceId: string,
  field: string,
  values: readonly string[],
): Promise<void> {
  await tx
    .updateTable("activity")
    .set({ detail: "{}" })
    .where("workspace_id", "=", workspaceId)
    .where(sql<string>`detail ->> ${field}`, "=", sql<string>`any(${sql.val([...values])}::text[])`)
    .execute();
}

function roleIn(actor: Actor, workspaceId: string | null): string | null {
  return actor.workspaces.find(({ id }) => id === workspaceId)?.role ?? actor.role;
}

const telltale =
  /pass(word|phrase)?$|secret|token$|api_?key|credential|authorization|cookie|^env|private_?key|dsn|connection_url/i;

export function withoutSecrets(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutSecrets);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).flatMap(([key, inner]) =>
      telltale.test(key) ? [] : [[key, withoutSecrets(inner)]],
    ),
  );
}

/** The actor of the server's own actions: a deadline, a repair, or an operator's command on the host. */
export function systemActor(label: string): Actor {
  return {
    kind: "system",
    id: "system",
    label,
    role: null,
    userId: "00000000-0000-0000-0000-000000000000",
    scopes: null,
    tokenId: null,
    workspaces: [],
    ip: null,
  };
}
