import { z } from "zod";
import { defineRoute, type Route, type RouteDefinition } from "#http/define-route.ts";
import type { App } from "../../app.ts";
import { accountSuspended, insufficientRole, planLimit } from "../errors.ts";
import { fullAccessErrors } from "../full-access.ts";
import type { Holding } from "../holdings.ts";
import { userNotFound } from "../users/users.ts";
import {
  TeamCreate,
  TeamMember,
  TeamMemberCreate,
  TeamMemberUpdate,
  TeamResponse,
  TeamSummary,
  TeamUpdate,
  toMember,
  toTeam,
  toTeamSummary,
} from "./schema.ts";
import {
  addMember,
  alreadyMember,
  changeMember,
  createTeam,
  deleteTeam,
  getMember,
  getTeam,
  lastOwner,
  listTeams,
  memberNotFound,
  removeMember,
  renameTeam,
  teamNotEmpty,
  teamNotFound,
} from "./teams.ts";

const read = {
  api: "platform",
  tag: "Teams",
  extension: true,
  scope: "platform:read",
} satisfies Partial<RouteDefinition>;
const write = { ...read, scope: "platform:write" } satisfies Partial<RouteDefinition>;

const teamParams = z.object({ team_id: z.guid() });
const memberParams = z.object({ team_id: z.guid(), user_id: z.guid() });

export const teamRoutes = (app: Pick<App, "db" | "clock">, holdings: readonly Holding[]): Route[] => [
  defineRoute({
    ...read,
    method: "GET",
    path: "/api/v1/teams",
    operationId: "listTeams",
    summary: "The teams the caller is in, newest first",
    responses: { 200: z.array(TeamSummary) },
    handler: async ({ actor }) => (await listTeams(app, actor)).map(toTeamSummary),
  }),
  defineRoute({
    ...write,
    method: "POST",
    path: "/api/v1/teams",
    operationId: "createTeam",
    summary: "Create a team; the caller owns it",
    body: TeamCreate,
    responses: { 201: TeamResponse },
    errors: [planLimit, accountSuspended, insufficientRole],
    idempotent: true,
    replay: {
      deed: "team.created",
      render: async ({ actor, made: [{ id }] }) => toTeam(await getTeam(app, actor, String(id))),
    },
    handler: async ({ actor, body }) => toTeam(await createTeam(app, actor, body)),
  }),
  defineRoute({
    ...read,
    method: "GET",
    path: "/api/v1/teams/{team_id}",
    operationId: "getTeam",
    summary: "A team and its members",
    params: teamParams,
    responses: { 200: TeamResponse },
    errors: [teamNotFound],
    handler: async ({ actor, params }) => toTeam(await getTeam(app, actor, params.team_id)),
  }),
  defineRoute({
    ...write,
    method: "PATCH",
    path: "/api/v1/teams/{team_id}",
    operationId: "updateTeam",
    summary: "Rename a team",
    params: teamParams,
    body: TeamUpdate,
    readOnlyFields: Object.keys(TeamResponse.shape).filter((field) => field !== "name"),
    responses: { 200: TeamResponse },
    errors: [teamNotFound, insufficientRole, accountSuspended],
    handler: async ({ actor, params, body }) => toTeam(await renameTeam(app, actor, params.team_id, body)),
  }),
  defineRoute({
    ...write,
    method: "DELETE",
    path: "/api/v1/teams/{team_id}",
    operationId: "deleteTeam",
    summary: "Delete a team that holds nothing any more",
    params: teamParams,
    responses: { 204: null },
    errors: [...fullAccessErrors, teamNotFound, insufficientRole, teamNotEmpty],
    handler: ({ actor, params }) => deleteTeam(app, actor, params.team_id, holdings),
  }),
  defineRoute({
    ...write,
    method: "POST",
    path: "/api/v1/teams/{team_id}/members",
    operationId: "addTeamMember",
    summary: "Add a person who has an account",
    params: teamParams,
    body: TeamMemberCreate,
    responses: { 201: TeamMember },
    errors: [
      ...fullAccessErrors,
      teamNotFound,
      userNotFound,
      insufficientRole,
      alreadyMember,
      planLimit,
      accountSuspended,
    ],
    idempotent: true,
    replay: {
      deed: "team.member_added",
      render: async ({ actor, params, made: [{ id }] }) =>
        toMember(await getMember(app, actor, params.team_id, String(id))),
    },
    handler: async ({ actor, params, body }) => toMember(await addMember(app, actor, params.team_id, body)),
  }),
  defineRoute({
    ...write,
    method: "PATCH",
    path: "/api/v1/teams/{team_id}/members/{user_id}",
    operationId: "updateTeamMember",
    summary: "Change a member's role",
    params: memberParams,
    body: TeamMemberUpdate,
    readOnlyFields: Object.keys(TeamMember.shape).filter((field) => field !== "role"),
    responses: { 200: TeamMember },
    errors: [
      ...fullAccessErrors,
      teamNotFound,
      memberNotFound,
      insufficientRole,
      lastOwner,
      accountSuspended,
    ],
    handler: async ({ actor, params, body }) =>
      toMember(await changeMember(app, actor, params.team_id, params.user_id, body.role)),
  }),
  defineRoute({
    ...write,
    method: "DELETE",
    path: "/api/v1/teams/{team_id}/members/{user_id}",
    operationId: "removeTeamMember",
    summary: "Remove a member, or leave",
    params: memberParams,
    responses: { 204: null },
    errors: [...fullAccessErrors, teamNotFound, memberNotFound, insufficientRole, lastOwner],
    handler: ({ actor, params }) => removeMember(app, actor, params.team_id, params.user_id),
  }),
];
