import { z } from "zod";
import { accountSuspended, workspaceNotFound } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { ProjectId } from "../input/schema.ts";
import { projectNotFound } from "../projects/errors.ts";
import { groupLimitReached, groupNotFound, otherWorkspace } from "./errors.ts";
import { assign, create, get, list, remove, unassign, update } from "./groups.ts";
import { GroupCreate, GroupResponse, GroupUpdate, GroupWithProjects, readOnlyFields } from "./schema.ts";

const common = { api: "platform", tag: "Groups" } as const;
const group_id = z.guid().describe("Id (UUID) of the group.");
const GroupParams = z.object({ group_id });
const MemberParams = z.object({ group_id, project_id: ProjectId });

export const groupRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/groups",
    operationId: "listGroups",
    summary: "List project groups",
    description: "Returns the newest first.",
    scope: "platform:read",
    responses: { 200: z.array(GroupResponse) },
    handler: ({ actor }) => list(app, actor),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/api/v1/groups",
    operationId: "createGroup",
    summary: "Create a project group",
    scope: "platform:write",
    body: GroupCreate,
    responses: { 201: GroupResponse },
    errors: [groupLimitReached, accountSuspended, workspaceNotFound],
    idempotent: true,
    replay: {
      activity: "project_group.created",
      render: ({ actor, made: [{ id }] }) => get(app, actor, String(id)),
    },
    handler: ({ actor, body }) => create(app, actor, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/groups/{group_id}",
    operationId: "getGroup",
    summary: "Get a group with its projects",
    scope: "platform:read",
    params: GroupParams,
    responses: { 200: GroupWithProjects },
    errors: [groupNotFound],
    handler: ({ actor, params }) => get(app, actor, params.group_id),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path: "/api/v1/groups/{group_id}",
    operationId: "updateGroup",
    summary: "Update a project group",
    description: "Changes the name, description or color.",
    scope: "platform:write",
    params: GroupParams,
    body: GroupUpdate,
    readOnlyFields,
    responses: { 200: GroupWithProjects },
    errors: [groupNotFound, accountSuspended],
    handler: ({ actor, params, body }) => update(app, actor, params.group_id, body),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/api/v1/groups/{group_id}",
    operationId: "deleteGroup",
    summary: "Delete a project group",
    description: "The projects of the group are kept.",
    scope: "platform:write",
    params: GroupParams,
    responses: { 204: null },
    errors: [groupNotFound],
    handler: ({ actor, params }) => remove(app, actor, params.group_id),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/api/v1/groups/{group_id}/projects/{project_id}",
    operationId: "assignProject",
    summary: "Add a project to a group",
    description: "A project belongs to at most one group, so it leaves its previous group.",
    scope: "platform:write",
    params: MemberParams,
    responses: { 200: GroupWithProjects },
    errors: [groupNotFound, projectNotFound, otherWorkspace, accountSuspended],
    handler: ({ actor, params }) => assign(app, actor, params.group_id, params.project_id),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/api/v1/groups/{group_id}/projects/{project_id}",
    operationId: "unassignProject",
    whileSuspended: false,
    summary: "Remove a project from a group",
    scope: "platform:write",
    params: MemberParams,
    responses: { 204: null },
    errors: [groupNotFound, projectNotFound, accountSuspended],
    handler: ({ actor, params }) => unassign(app, actor, params.group_id, params.project_id),
  }),
];
