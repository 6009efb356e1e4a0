-- Apps reach what their workspace serves by the private network: what an instance is begun with says whose it is. Those
-- that run are in it from their next machine on.

update app_instances as i
set run = i.run || jsonb_build_object('workspaceId', p.workspace_id)
from environments as e
  join projects as p on p.id = e.project_id
where e.id = i.environment_id;
