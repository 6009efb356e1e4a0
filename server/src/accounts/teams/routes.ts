import { z } from "zod";
import { defineRoute, type Route, type RouteDefinition } from "#http/define-route.ts";
import type { App } from "../../app.ts";
import { accountSuspended, insufficientRole, planLimit } from "../errors.ts";
import { fullAccessErrors } from "../full-access.ts";
import type { Holding } from "../holdings.ts";
import {
  acceptInvitation,
  alreadyInvited,
  declineInvitation,
  getTeamInvitation,
  invitationNotFound,
  invite,
  listOwnInvitations,
  listTeamInvitations,
  revokeInvitation,
} from "./invitations.ts";
import {
  TeamCreate,
  TeamInvitation,
  TeamMember,
  TeamMemberCreate,
  TeamMemberUpdate,
  TeamResponse,
  TeamSummary,
  TeamUpdate,
  toInvitation,
  toMember,
  toTeam,
  toTeamSummary,
} from "./schema.ts";
import {
  alreadyMember,
  changeMember,
  createTeam,
  deleteTeam,
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

const team_id = z.guid().describe("Id (UUID) of the team.");
const invitation_id = z.guid().describe("Id (UUID) of the invitation.");
const teamParams = z.object({ team_id });
const invitationParams = z.object({ invitation_id });
const memberParams = z.object({
  team_id,
  user_id: z.guid().describe("Id (UUID) of the member's account: `user_id` in the team's members."),
});

export const teamRoutes = (app: Pick<App, "db" | "clock">, holdings: readonly Holding[]): Route[] => [
  defineRoute({
    ...read,
    method: "GET",
    path: "/api/v1/teams",
    operationId: "listTeams",
    summary: "List the caller's teams",
    description: "Returns the newest first.",
    responses: { 200: z.array(TeamSummary) },
    handler: async ({ actor }) => (await listTeams(app, actor)).map(toTeamSummary),
  }),
  defineRoute({
    ...write,
    method: "POST",
    path: "/api/v1/teams",
    operationId: "createTeam",
    summary: "Create a team",
    description: "The caller becomes the owner.",
    body: TeamCreate,
    responses: { 201: TeamResponse },
    errors: [planLimit, accountSuspended, insufficientRole],
    idempotent: true,
    replay: {
      activity: "team.created",
      render: async ({ actor, made: [{ id }] }) => toTeam(await getTeam(app, actor, String(id))),
    },
    handler: async ({ actor, body }) => toTeam(await createTeam(app, actor, body)),
  }),
  defineRoute({
    ...read,
    method: "GET",
    path: "/api/v1/teams/{team_id}",
    operationId: "getTeam",
    summary: "Get a team with its members",
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
    summary: "Delete a team",
    description:
      "Delete projects, functions, sandboxes and other resources first: while any exists, the response is 409 `team_not_empty`.",
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
    summary: "Invite a person by e-mail",
    description:
      "The person joins by accepting the invitation. An account that is created later for the address sees the invitation too. The response is the same for an address with and without an account.",
    params: teamParams,
    body: TeamMemberCreate,
    responses: { 201: TeamInvitation },
    errors: [
      ...fullAccessErrors,
      teamNotFound,
      insufficientRole,
      alreadyMember,
      alreadyInvited,
      planLimit,
      accountSuspended,
    ],
    idempotent: true,
    replay: {
      activity: "team.member_invited",
      render: async ({ actor, params, made: [{ id }] }) =>
        toInvitation(await getTeamInvitation(app, actor, params.team_id, String(id))),
    },
    handler: async ({ actor, params, body }) => toInvitation(await invite(app, actor, params.team_id, body)),
  }),
  defineRoute({
    ...read,
    method: "GET",
    path: "/api/v1/teams/{team_id}/invitations",
    operationId: "listTeamInvitations",
    summary: "List a team's open invitations",
    description: "Returns the newest first.",
    params: teamParams,
    responses: { 200: z.array(TeamInvitation) },
    errors: [...fullAccessErrors, teamNotFound],
    handler: async ({ actor, params }) =>
      (await listTeamInvitations(app, actor, params.team_id)).map(toInvitation),
  }),
  defineRoute({
    ...write,
    method: "DELETE",
    path: "/api/v1/teams/{team_id}/invitations/{invitation_id}",
    operationId: "revokeTeamInvitation",
    summary: "Revoke an open invitation",
    params: z.object({ team_id, invitation_id }),
    responses: { 204: null },
    errors: [...fullAccessErrors, teamNotFound, invitationNotFound, insufficientRole],
    handler: ({ actor, params }) => revokeInvitation(app, actor, params.team_id, params.invitation_id),
  }),
  defineRoute({
    ...read,
    method: "GET",
    path: "/api/v1/invitations",
    operationId: "listInvitations",
    summary: "List the caller's invitations",
    description: "Returns the open invitations to the caller's e-mail address, newest first.",
    responses: { 200: z.array(TeamInvitation) },
    errors: fullAccessErrors,
    handler: async ({ actor }) => (await listOwnInvitations(app, actor)).map(toInvitation),
  }),
  defineRoute({
    ...write,
    method: "POST",
    path: "/api/v1/invitations/{invitation_id}/accept",
    operationId: "acceptInvitation",
    summary: "Accept an invitation",
    description: "The caller joins the team with the role of the invitation.",
    params: invitationParams,
    responses: { 200: TeamSummary },
    errors: [...fullAccessErrors, invitationNotFound, planLimit, accountSuspended],
    handler: async ({ actor, params }) =>
      toTeamSummary(await acceptInvitation(app, actor, params.invitation_id)),
  }),
  defineRoute({
    ...write,
    method: "POST",
    path: "/api/v1/invitations/{invitation_id}/decline",
    operationId: "declineInvitation",
    whileSuspended: true,
    summary: "Decline an invitation",
    params: invitationParams,
    responses: { 204: null },
    errors: [...fullAccessErrors, invitationNotFound],
    handler: ({ actor, params }) => declineInvitation(app, actor, params.invitation_id),
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
    whileSuspended: false,
    allowsViewers: true,
    summary: "Remove a team member",
    description:
      "Members can remove themselves. The team's tokens of the member are revoked. The last owner cannot be removed: 409 `last_owner`.",
    params: memberParams,
    responses: { 204: null },
    errors: [...fullAccessErrors, teamNotFound, memberNotFound, insufficientRole, lastOwner],
    handler: ({ actor, params }) => removeMember(app, actor, params.team_id, params.user_id),
  }),
];
