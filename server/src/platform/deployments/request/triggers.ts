/** Kind and actor of a deployment, as shown in its record. */
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
 * Returns the columns for the user and the actor, for deployments and versions of functions. The label of a sign-in
 * session is an email address; it is read from `users` instead.
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
