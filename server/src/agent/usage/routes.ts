import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { AgentParams } from "../agents/schema.ts";
import { agentNotFound } from "../errors.ts";
import { Usage, UsageQuery } from "./schema.ts";
import { usage } from "./usage.ts";

export const usageRoutes = (app: App): Route[] => [
  defineRoute({
    api: "agent",
    tag: "Usage",
    method: "GET",
    path: "/v1/agents/{agent}/usage",
    operationId: "getAgentUsage",
    summary: "Get an agent's usage",
    description: "Returns runs and tokens by end user, day and model.",
    scope: "agents:read",
    params: AgentParams,
    query: UsageQuery,
    responses: { 200: Usage },
    errors: [agentNotFound],
    handler: ({ actor, params, query }) => usage(app, actor, params.agent, query.days),
  }),
];
