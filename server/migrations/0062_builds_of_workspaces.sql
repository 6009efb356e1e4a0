-- Builds wait in turns of the accounts that pay, by way of the workspace. No reference: a build ends by itself after its
-- template is gone.
alter table builds add column workspace_id uuid;
update builds set workspace_id = templates.workspace_id from templates where templates.id = builds.id;
