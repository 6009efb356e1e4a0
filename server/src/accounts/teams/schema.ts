import { z } from "zod";
import { teamRoles } from "../roles.ts";
import type { InvitationRow, MemberRow, TeamRow } from "./store.ts";

const role = z
  .enum(teamRoles)
  .describe("Role in the team. A `viewer` can only read, and gets hints in place of secrets.");

export const TeamCreate = z
  .object({
    name: z
      .string()
      .trim()
      .min(1)
      .max(64)
      .describe("Name of the team, 1 to 64 characters. Need not be unique."),
  })
  .meta({ id: "TeamCreate" });
export const TeamUpdate = z
  .object({
    name: z.string().trim().min(1).max(64).optional().describe("New name of the team, 1 to 64 characters."),
  })
  .meta({ id: "TeamUpdate" });
export const TeamMemberCreate = z
  .object({
    email: z.email().max(254).describe("E-mail address to invite, with or without an account."),
    role: role
      .default("member")
      .describe("Role in the team once the invitation is accepted. Default: `member`."),
  })
  .meta({ id: "TeamMemberCreate" });
export const TeamMemberUpdate = z.object({ role }).meta({ id: "TeamMemberUpdate" });

const team = {
  id: z.guid().describe("Id (UUID) of the team, and of its workspace."),
  name: z.string().describe("Name of the team."),
  role: role
    .nullable()
    .describe("Role of the caller in the team. Null for the operator, who is not a member."),
  plan: z
    .enum(["starter", "pro", "team"])
    .describe(
      "Plan of the team, which sets its limits. Initially the creator's plan; the operator can change it.",
    ),
  sandbox_tier: z
    .enum(["free", "payg", "enterprise"])
    .describe(
      "Tier that sets the limits for sandboxes. Initially the creator's tier; the operator can change it.",
    ),
  suspended: z
    .boolean()
    .describe(
      "True while the operator suspends the team: nothing can be created or changed; deleting is allowed.",
    ),
  member_count: z.int().describe("Number of members, without open invitations."),
  created_at: z.iso.datetime().describe("Time of creation."),
};

export const TeamMember = z
  .object({
    user_id: z.guid().describe("Id (UUID) of the member's account."),
    email: z.string().describe("E-mail address of the member."),
    name: z.string().describe("Display name of the member."),
    role,
    joined_at: z.iso.datetime().describe("Time at which the person became a member."),
  })
  .meta({ id: "TeamMember" });
export const TeamInvitation = z
  .object({
    id: z.guid().describe("Id (UUID) of the invitation."),
    team_id: z.guid().describe("Id (UUID) of the team."),
    team_name: z.string().describe("Current name of the team."),
    email: z.string().describe("Invited address. The team does not learn whether it has an account."),
    role: role.describe("Role in the team once the invitation is accepted."),
    invited_by: z.string().describe("E-mail address of the inviter."),
    created_at: z.iso.datetime().describe("Time of the invitation."),
    expires_at: z.iso
      .datetime()
      .describe("Time at which the invitation expires: seven days after `created_at`."),
  })
  .meta({ id: "TeamInvitation" });
export const TeamSummary = z.object(team).meta({ id: "TeamSummary" });
export const TeamResponse = z
  .object({ ...team, members: z.array(TeamMember).describe("Members in the order in which they joined.") })
  .meta({ id: "TeamResponse" });

export function toTeamSummary({ suspended_at, created_at, ...row }: TeamRow): z.output<typeof TeamSummary> {
  return { ...row, suspended: suspended_at !== null, created_at: created_at.toISOString() };
}

export function toTeam({
  members,
  ...row
}: TeamRow & { members: MemberRow[] }): z.output<typeof TeamResponse> {
  return { ...toTeamSummary(row), members: members.map(toMember) };
}

export function toMember({ created_at, ...row }: MemberRow): z.output<typeof TeamMember> {
  return { ...row, joined_at: created_at.toISOString() };
}

export function toInvitation({
  workspace_id,
  created_at,
  expires_at,
  ...row
}: InvitationRow): z.output<typeof TeamInvitation> {
  return {
    ...row,
    team_id: workspace_id,
    created_at: created_at.toISOString(),
    expires_at: expires_at.toISOString(),
  };
}
