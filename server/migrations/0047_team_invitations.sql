-- Invitations to a team that wait for the person's decision. An accepted, declined or revoked one is deleted; the
-- activity log keeps what became of it. An expired one is ignored, and deleted by the team's next invitation.
create table team_invitations (
  id uuid primary key default gen_random_uuid(),
  workspace_id uuid not null references workspaces (id) on delete cascade,
  -- An address, not an account: the team must not learn whether there is one.
  email text not null check (email = lower(email)),
  role text not null check (role in ('viewer', 'member', 'admin', 'owner')),
  invited_by uuid not null references users (id) on delete cascade,
  created_at timestamptz not null,
  expires_at timestamptz not null,
  unique (workspace_id, email)
);
create index team_invitations_email on team_invitations (email);
create index team_invitations_inviter on team_invitations (invited_by);
