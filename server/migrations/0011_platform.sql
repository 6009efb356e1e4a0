-- Projects: a git repository that is served at an address. Each has environments, each environment its deployments.

create table project_groups (
  id uuid primary key default gen_random_uuid(),
  workspace_id uuid not null references workspaces (id) on delete cascade,
  name text not null,
  description text,
  color text,
  created_at timestamptz not null default now()
);
create index project_groups_list on project_groups (workspace_id, created_at desc, id desc);

create table projects (
  id uuid primary key default gen_random_uuid(),
  workspace_id uuid not null references workspaces (id) on delete cascade,
  -- The slug: the first label of its address.
  name text not null unique,
  -- Null: hosted here, and pushed to.
  repo_url text,
  branch text not null default 'main',
  root_directory text not null default '/',
  -- What the caller laid down; null is found out anew at each deployment.
  framework text,
  install_command text,
  build_command text,
  start_command text,
  output_directory text,
  port integer check (port between 1 and 65535),
  health_check_path text not null default '/',
  auto_deploy boolean not null default true,
  isolation text not null default 'native' check (isolation in ('native', 'gvisor')),
  region text not null,
  env_sealed bytea,
  -- For a private https repository.
  git_token_sealed bytea,
  -- For an ssh repository: made with the project.
  deploy_key_public text,
  deploy_key_sealed bytea,
  -- What a forge calls at a push, and what it signs with.
  hook_id text not null unique,
  hook_secret_sealed bytea not null,
  -- {at, event, status, detail}
  hook_last_delivery jsonb,
  custom_domain text unique,
  domain_status text check (domain_status in ('pending', 'verified', 'failed')),
  domain_checked_at timestamptz,
  domain_error text,
  group_id uuid references project_groups (id) on delete set null,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- Deleted, and its machines, images and repository not all gone yet: nobody sees it.
  deleted_at timestamptz,
  check ((custom_domain is null) = (domain_status is null))
);
create index projects_list on projects (workspace_id, created_at desc, id desc);

create table environments (
  id uuid primary key default gen_random_uuid(),
  project_id uuid not null references projects (id) on delete cascade,
  name text not null,
  kind text not null check (kind in ('production', 'staging', 'dev', 'preview')),
  branch text not null,
  -- The first label of its host: `<slug>`, or `<slug>--<name>`. Free for others once it is gone.
  host_label text not null unique,
  size text not null,
  env_sealed bytea,
  -- What is served now.
  live_deployment_id uuid,
  asleep_since timestamptz,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (project_id, name)
);
create unique index environments_one_production on environments (project_id) where kind = 'production';

create table deployments (
  id uuid primary key default gen_random_uuid(),
  project_id uuid not null references projects (id) on delete cascade,
  environment_id uuid not null references environments (id) on delete cascade,
  -- Counts up within the project.
  number integer not null,
  status text not null check (status in
    ('queued', 'building', 'deploying', 'live', 'failed', 'cancelled', 'superseded')),
  trigger_kind text not null check (trigger_kind in ('api', 'push', 'rollback', 'console', 'agent')),
  -- {kind, id, label}
  trigger_actor jsonb not null,
  -- What is to be deployed: a commit, or null for the newest of the branch.
  wanted_sha text,
  commit_sha text,
  commit_message text,
  commit_author text,
  -- What it was built with and runs as; a rollback takes the same. Null until it is known.
  image_tag text,
  image_id text,
  -- {argv, port, health_check_path}
  run jsonb,
  -- The variables it went live with: for a rollback that wants them back.
  env_sealed bytea,
  -- [{name, status, started_at, finished_at, error}]
  steps jsonb not null,
  error text,
  rolled_back_from uuid references deployments (id) on delete set null,
  -- Of a rollback: build the commit again where the image is gone; take the old variables.
  allow_rebuild boolean not null default false,
  restore_env boolean not null default false,
  -- Somebody wants it ended.
  cancel_asked boolean not null default false,
  -- How often it was begun: a server that ends begins it again.
  attempts integer not null default 0,
  log_bytes bigint not null default 0,
  log_truncated boolean not null default false,
  created_at timestamptz not null default now(),
  started_at timestamptz,
  finished_at timestamptz,
  unique (project_id, number),
  check ((status in ('failed', 'cancelled', 'live', 'superseded')) = (finished_at is not null))
);
-- One at a time; a push that comes meanwhile waits, and only the newest of those.
create unique index deployments_one_running on deployments (environment_id)
  where status in ('building', 'deploying');
create unique index deployments_one_queued on deployments (environment_id) where status = 'queued';
create index deployments_list on deployments (project_id, created_at desc, id desc);
create index deployments_environment on deployments (environment_id, created_at desc, id desc);

create table deployment_logs (
  deployment_id uuid not null references deployments (id) on delete cascade,
  seq bigint generated always as identity,
  step text not null,
  at timestamptz not null,
  text text not null,
  primary key (deployment_id, seq)
);
