-- Deployments that build nothing: of an unchanged commit, and restarts. Deployments of a commit or tag that is named.

alter table deployments
  drop constraint deployments_trigger_kind_check,
  add constraint deployments_trigger_kind_check
    check (trigger_kind in ('api', 'push', 'rollback', 'restart', 'console', 'agent')),
  -- A tag in place of a branch's newest commit; the commit is known once it is fetched.
  add column wanted_tag text,
  -- Build even where an image of the same build is kept.
  add column rebuild boolean not null default false,
  -- The image is an earlier build's.
  add column image_reused boolean not null default false;

-- Keyed hash of all that a build reads: commit, recipe, variables. Null on images from before this migration.
alter table app_images add column build_key bytea;
create index app_images_build_key on app_images (project_id, build_key) where pruned_at is null;
