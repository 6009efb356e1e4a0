import { z } from "zod";
import { teamRoles } from "../actor.ts";
import type { InvitationRow, MemberRow, TeamRow } from "./store.ts";

const role = z.enum(teamRoles).describe("A viewer reads and changes nothing, and gets hints for secrets.");

export const TeamCreate = z.object({ name: z.string().trim().min(1).max(64) }).meta({ id: "TeamCreate" });
export const TeamUpdate = z
  .object({ name: z.string().trim().min(1).max(64).optional() })
  .meta({ id: "TeamUpdate" });
export const TeamMemberCreate = z
  .object({ email: z.email().max(254), role: role.default("member") })
  .meta({ id: "TeamMemberCreate" });
export const TeamMemberUpdate = z.object({ role }).meta({ id: "TeamMemberUpdate" });

const team = {
  id: z.guid().describe("Also the team's workspace."),
  name: z.string(),
  role: role.nullable().describe("The caller's own."),
  plan: z.enum(["starter", "pro", "team"]),
  sandbox_tier: z.enum(["free", "payg", "enterprise"]),
  suspended: z.boolean(),
  member_count: z.int(),
  created_at: z.iso.datetime(),
};

export const TeamMember = z
  .object({ user_id: z.guid(), email: z.string(), name: z.string(), role, joined_at: z.iso.datetime() })
  .meta({ id: "TeamMember" });
export const TeamInvitation = z
  .object({
    id: z.guid(),
    team_id: z.guid(),
    team_name: z.string(),
    email: z.string().describe("Invited address. The team does not learn whether it has an account."),
    role: role.describe("Role in the team once the invitation is accepted."),
    invited_by: z.string().describe("E-mail address of the inviter."),
    created_at: z.iso.datetime(),
    expires_at: z.iso.datetime().describe("Seven days after `created_at`."),
  })
  .meta({ id: "TeamInvitation" });
export const TeamSummary = z.object(team).meta({ id: "TeamSummary" });
export const TeamResponse = z.object({ ...team, members: z.array(TeamMember) }).meta({ id: "TeamResponse" });

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
