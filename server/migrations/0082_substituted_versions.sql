-- Version inside, if it differs from the one in the template's name: 3.13.5 for python-3.12. Null if the name is right.

alter table templates add column substitute text;
alter table sandboxes add column substituted text;
alter table sandbox_snapshots add column substituted text;

-- Only Python was substituted before this column.
update templates set substitute = contents ->> 'python' where substituted;

update sandboxes
set substituted = coalesce(
  (select t.substitute from templates t where t.id = sandboxes.template_id),
  (select max(i.contents ->> 'python') from host_images i
   where sandboxes.template_id is null and i.name = sandboxes.template and i.substituted))
-- Other rows stay as they are: a row that is written again costs the start of a server with many ended sandboxes.
where template_id in (select id from templates where substitute is not null)
  or (template_id is null and template in (select name from host_images where substituted));

update sandbox_snapshots
set substituted = coalesce(
  (select t.substitute from templates t where t.id = sandbox_snapshots.template_id),
  (select max(i.contents ->> 'python') from host_images i
   where sandbox_snapshots.template_id is null and i.name = sandbox_snapshots.template and i.substituted))
where template_id in (select id from templates where substitute is not null)
  or (template_id is null and template in (select name from host_images where substituted));
