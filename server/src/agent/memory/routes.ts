import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { agentNotFound } from "../errors.ts";
import { forget, read } from "./memory.ts";
import { ForgetQuery, DeletedFacts, Memory, MemoryParams } from "./schema.ts";

const common = {
  api: "agent",
  tag: "End users",
  path: "/v1/agents/{agent}/end-users/{end_user_id}/memory",
  scope: "agents:write",
  params: MemoryParams,
  errors: [agentNotFound],
} as const;

export const memoryRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    operationId: "getAgentMemory",
    summary: "Get the memory of an end user",
    responses: { 200: Memory },
    handler: ({ actor, params }) => read(app, actor, params.agent, params.end_user_id),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    operationId: "forgetAgentMemory",
    summary: "Delete facts of an end user",
    description:
      "Deletes the fact with the given `key`, or all facts without `key`. Returns 0 as `deleted` if there are none.",
    query: ForgetQuery,
    responses: { 200: DeletedFacts },
    handler: ({ actor, params, query }) => forget(app, actor, params.agent, params.end_user_id, query.key),
  }),
];
