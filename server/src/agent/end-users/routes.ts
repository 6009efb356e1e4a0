import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { deleteStoredResponses } from "#http/idempotency.ts";
import { agentNotFound } from "../errors.ts";
import type { RunExecutor } from "../runs/engine/run-executor.ts";
import { erase } from "./erase.ts";
import { EndUserParams, EndUserErasure } from "./schema.ts";

export const endUserRoutes = (app: App, runs: RunExecutor): Route[] => [
  defineRoute({
    api: "agent",
    tag: "End users",
    method: "DELETE",
    path: "/v1/agents/{agent}/end-users/{end_user_id}",
    operationId: "eraseAgentEndUser",
    summary: "Erase an end user",
    description:
      "Deletes the end user's sessions, messages, runs, usage, memory, connections, schedules and webhooks before it responds. Active runs stop, and machines end within moments. For an unknown end user all counts are 0.",
    scope: "agents:write",
    params: EndUserParams,
    responses: { 200: EndUserErasure },
    errors: [agentNotFound],
    handler: ({ actor, params }) =>
      erase(app, runs, actor, {
        agent: params.agent,
        endUserId: params.end_user_id,
        forgetAnswers: deleteStoredResponses,
      }),
  }),
];
