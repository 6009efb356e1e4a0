/** Kind and actor of a deployment's request, as its record shows them. */
import type { Actor } from "#accounts/actor.ts";
import { deletedLabel } from "#accounts/activity/activity.ts";
import type { TriggerActor } from "../tables.ts";

const kinds = { user: "console", worker: "agent", api_token: "api", system: "api" } as const satisfies Record<
  Actor["kind"],
  string
>;

export function triggerKind({ kind }: Pick<Actor, "kind">): "console" | "agent" | "api" {
  return kinds[kind];
}

/**
 * Returns the columns of user and actor, for deployments and for versions of functions. The label of a sign-in session
 * is an email address. So the label is not stored, but read from `users`.
 */
export function triggerColumns(actor: Actor): {
  trigger_actor: TriggerActor;
  trigger_user_id: string | null;
} {
  const { kind, id, label } = actor;
  return {
    trigger_actor: { kind, id, label: kind === "user" ? deletedLabel : label },
    trigger_user_id: kind === "system" ? null : actor.userId,
  };
}
