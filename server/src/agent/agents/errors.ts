import { defineError } from "#lib/errors.ts";

export const nameTaken = defineError(
  "name_taken",
  409,
  (name: string) => `The account already has an agent named "${name}". Use another name.`,
);

export const aliasLimitReached = defineError("alias_limit_reached", 409, (allowed: number) => ({
  detail: `An agent has at most ${allowed} aliases; move or delete an existing one.`,
  meta: { limit: "aliases", allowed },
}));

export const agentLimitReached = defineError("agent_limit_reached", 409, (allowed: number) => ({
  detail: `An account has at most ${allowed} agents; delete one first.`,
  meta: { limit: "agents", allowed },
}));

export const agentInUse = defineError("agent_in_use", 409, (runIds: readonly string[]) => ({
  detail: `Runs of the agent are active: ${runIds.join(", ")}. Wait for their end, or cancel each with POST /v1/agents/runs/{run_id}/cancel; then delete the agent.`,
  meta: { run_ids: runIds },
}));

export const versionInUse = defineError(
  "version_in_use",
  409,
  (why: { aliases: readonly string[]; sessions: number; triggers: number; isLatest: boolean }) => {
    const reasons = [
      ...(why.isLatest ? ["The version is the latest one: publish another version first."] : []),
      ...(why.aliases.length > 0
        ? [
            `Aliases point at the version (${why.aliases.join(", ")}): point them at another version ` +
              "first.",
          ]
        : []),
      ...(why.sessions > 0
        ? [
            `Live sessions are pinned to the version (${why.sessions}): end them, or invoke each with ` +
              "upgrade: true, first.",
          ]
        : []),
      ...(why.triggers > 0
        ? [`Schedules or webhooks (${why.triggers}) use the version: give each another qualifier first.`]
        : []),
    ];
    return {
      detail: reasons.join(" "),
      meta: { aliases: why.aliases, live_sessions: why.sessions, triggers: why.triggers },
    };
  },
);

export const aliasNotFound = defineError("alias_not_found", 404, () => "The agent has no such alias.");

export const aliasInUse = defineError(
  "alias_in_use",
  409,
  (triggers: { schedules: number; webhooks: number }) => ({
    detail: `Schedules (${triggers.schedules}) and webhooks (${triggers.webhooks}) run the version of this alias: delete them or give them another qualifier first, or point the alias at another version with PUT.`,
    meta: triggers,
  }),
);
