-- The account that pays for each workspace: the person of a personal one, the first owner of a team. Fair shares are
-- counted by payer, so that one person's workspaces do not add up.
create view workspace_payers as
select w.id as workspace_id,
  coalesce(
    w.owner_user_id,
    (select m.user_id from team_members m
      where m.workspace_id = w.id and m.role = 'owner' order by m.created_at, m.user_id limit 1),
    w.id
  ) as payer_id
from workspaces w;
