/** Kind and actor of a deployment, as shown in its record. */
import type { Actor } from "#accounts/actor.ts";
import type { TriggerActor } from "./tables.ts";

const kinds = { user: "console", worker: "agent", api_token: "api", system: "api" } as const satisfies Record<
  Actor["kind"],
  string
>;

export function triggerKind({ kind }: Pick<Actor, "kind">): "console" | "agent" | "api" {
  return kinds[kind];
}

export function triggerActor({ kind, id, label }: Actor): TriggerActor {
  return { kind, id, label };
}
