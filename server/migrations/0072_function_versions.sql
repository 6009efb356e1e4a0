-- Deploys of functions are versions that can be listed, followed and rolled back to, as those of apps are.

alter table function_versions
  -- As in deployments; null on versions from before this migration.
  add column trigger_kind text check (trigger_kind in ('api', 'console', 'agent', 'rollback')),
  add column trigger_actor jsonb,
  -- The version that a rollback took code and image from.
  add column rolled_back_from text references function_versions (id) on delete set null,
  -- The image is an earlier version's: nothing was built.
  add column image_reused boolean not null default false,
  -- {step, percent, message} while it is built.
  add column progress jsonb,
  add column log_truncated boolean not null default false;

create table function_version_logs (
  version_id text not null references function_versions (id) on delete cascade,
  seq bigint generated always as identity,
  step text not null,
  at timestamptz not null,
  text text not null,
  primary key (version_id, seq)
);
