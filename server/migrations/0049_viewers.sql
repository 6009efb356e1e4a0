-- A viewer of a team reads what the team has and changes nothing.
alter table team_members drop constraint team_members_role_check;
alter table team_members add constraint team_members_role_check
  check (role in ('viewer', 'member', 'admin', 'owner'));
