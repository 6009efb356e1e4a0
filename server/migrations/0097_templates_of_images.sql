-- Templates made of a Dockerfile or of an image, beside those made of a base and shell steps.

-- Text that the enclosed builder gets. Null for a build of shell steps.
alter table builds add column dockerfile text;
-- {fraction, step}: progress of a running build of a Dockerfile. Null for a build of shell steps.
alter table builds add column progress jsonb;

-- One of the two as the create request named it, null for a base and shell steps.
alter table templates add column dockerfile text;
alter table templates add column image text;

-- {cwd, user}: WORKDIR and USER of the image, the defaults of processes. Null for an image without either.
alter table templates add column process_defaults jsonb;
alter table sandboxes add column process_defaults jsonb;
alter table sandbox_snapshots add column process_defaults jsonb;
