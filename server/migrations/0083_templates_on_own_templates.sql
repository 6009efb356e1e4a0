-- Templates that are built on another template of the workspace. No reference: the base may be deleted.

alter table templates add column base_template_id text;
-- Own templates that it is made of, itself included.
alter table templates add column depth integer not null default 1;
