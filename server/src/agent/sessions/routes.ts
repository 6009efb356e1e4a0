import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { agentNotFound, invalidField } from "../errors.ts";
import type { RunExecutor } from "../runs/engine/run-executor.ts";
import { end } from "./end.ts";
import { sessionNotFound } from "./errors.ts";
import { MessageList, MessageQuery, Session, SessionList, SessionParams, SessionQuery } from "./schema.ts";
import { get, list, messages } from "./sessions.ts";
import { AgentParams } from "../agents/schema.ts";

const common = { api: "agent", tag: "Sessions" } as const;

export const sessionRoutes = (app: App, runs: RunExecutor): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agents/{agent}/sessions",
    operationId: "listAgentSessions",
    summary: "List an agent's sessions",
    scope: "agents:read",
    extension: true,
    params: AgentParams,
    query: SessionQuery,
    responses: { 200: SessionList },
    errors: [agentNotFound, invalidField],
    handler: ({ actor, params, query }) => list(app, actor, params.agent, query),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agents/{agent}/sessions/{session_id}",
    operationId: "getAgentSession",
    summary: "Get a session",
    scope: "agents:read",
    extension: true,
    params: SessionParams,
    responses: { 200: Session },
    errors: [agentNotFound, sessionNotFound],
    handler: ({ actor, params }) => get(app, actor, params.agent, params.session_id),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agents/{agent}/sessions/{session_id}/messages",
    operationId: "listAgentSessionMessages",
    summary: "List a session's messages",
    description:
      "Returns messages with their complete tool results, oldest first. The list is empty after the session's end. A page has at most 4 MiB, or one larger message.",
    scope: "agents:read",
    extension: true,
    params: SessionParams,
    query: MessageQuery,
    responses: { 200: MessageList },
    errors: [agentNotFound, sessionNotFound],
    handler: ({ actor, params, query }) => messages(app, actor, params, query),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/agents/{agent}/sessions/{session_id}",
    operationId: "endAgentSession",
    summary: "End a session",
    description:
      "Deletes the messages and the machine of the session. An active run in it fails with `session_ended`. Ending an ended session changes nothing.",
    scope: "agents:invoke",
    params: SessionParams,
    responses: { 204: null },
    errors: [agentNotFound, sessionNotFound],
    handler: ({ actor, params }) => end(app, runs, actor, params.agent, params.session_id),
  }),
];
