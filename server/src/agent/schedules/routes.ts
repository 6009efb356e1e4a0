import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { AgentParams } from "../agents/schema.ts";
import { agentNotFound, invalidField } from "../errors.ts";
import { scheduleLimitReached, scheduleNotFound } from "./errors.ts";
import {
  Schedule,
  ScheduleCreate,
  ScheduleList,
  ScheduleParams,
  scheduleReadOnlyFields,
  ScheduleUpdate,
} from "./schema.ts";
import { create, get, list, remove, update } from "./schedules.ts";

const common = { api: "agent", tag: "Triggers" } as const;

export const scheduleRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agents/{agent}/schedules",
    operationId: "listAgentSchedules",
    summary: "List an agent's schedules",
    scope: "agents:read",
    params: AgentParams,
    responses: { 200: ScheduleList },
    errors: [agentNotFound],
    handler: ({ actor, params }) => list(app, actor, params.agent),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agents/{agent}/schedules",
    operationId: "createAgentSchedule",
    summary: "Create a schedule",
    description:
      "Each time starts a run in its own session, with the version at `prod` and without an end user. `session`, `qualifier` and `end_user_id` change that. When clocks go forward, a skipped time runs right after the gap. When clocks go back, a repeated time runs only the first time. After a downtime, the last missed time runs if it is less than ten minutes ago.",
    scope: "agents:write",
    params: AgentParams,
    body: ScheduleCreate,
    responses: { 201: Schedule },
    errors: [agentNotFound, invalidField, scheduleLimitReached, accountSuspended],
    idempotent: true,
    replay: {
      activity: "agent_schedule.created",
      render: ({ actor, params, made: [{ id }] }) => get(app, actor, params.agent, String(id)),
    },
    handler: ({ actor, params, body }) => create(app, actor, params.agent, body),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path: "/v1/agents/{agent}/schedules/{schedule_id}",
    operationId: "updateAgentSchedule",
    summary: "Update a schedule",
    description: "Changes the given fields. `enabled` switches the schedule on or off.",
    scope: "agents:write",
    params: ScheduleParams,
    body: ScheduleUpdate,
    readOnlyFields: scheduleReadOnlyFields,
    responses: { 200: Schedule },
    errors: [agentNotFound, scheduleNotFound, invalidField, accountSuspended],
    handler: ({ actor, params, body }) => update(app, actor, params.agent, params.schedule_id, body),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/agents/{agent}/schedules/{schedule_id}",
    operationId: "deleteAgentSchedule",
    summary: "Delete a schedule",
    description: "Active runs of the schedule continue.",
    scope: "agents:write",
    params: ScheduleParams,
    responses: { 204: null },
    errors: [agentNotFound, scheduleNotFound],
    handler: ({ actor, params }) => remove(app, actor, params.agent, params.schedule_id),
  }),
];
