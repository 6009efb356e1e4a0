import { defineError } from "#lib/errors.ts";

export const nameTaken = defineError(
  "name_taken",
  409,
  (name: string) => `The account has an agent "${name}" already.`,
);

export const aliasLimitReached = defineError("alias_limit_reached", 409, (allowed: number) => ({
  detail: `An agent has at most ${allowed} aliases; move one that is there.`,
  meta: { limit: "aliases", allowed },
}));

export const agentLimitReached = defineError("agent_limit_reached", 409, (allowed: number) => ({
  detail: `An account has at most ${allowed} agents.`,
  meta: { limit: "agents", allowed },
}));
