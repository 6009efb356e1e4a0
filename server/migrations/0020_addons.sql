-- Add-ons: databases in machines of their own, and their backups.

-- Machines of one group (a workspace) reach what others of it serve, each at an address that outlives its machine:
-- {"name", "address", "ports"}.
alter table machines
  add column private_group text,
  add column serves jsonb;
alter table snapshots
  add column private_group text;

create table addons (
  id uuid primary key default gen_random_uuid(),
  project_id uuid not null references projects (id) on delete cascade,
  -- The environment its variables are for; null: all of the project's. No reference: with its environment gone it is
  -- for none, and must not become everybody's.
  environment_id uuid,
  kind text not null check (kind in ('postgres', 'redis')),
  version text not null,
  -- Unique in its project: part of its private name, `<name>.<project>.internal`.
  name text not null,
  size text not null,
  status text not null check (status in ('provisioning', 'running', 'stopped', 'failed')),
  -- Why it is not running.
  error text,
  -- Its place among the private addresses of its host.
  private_index integer not null unique,
  username text not null,
  database text,
  password_sealed bytea not null,
  public boolean not null default false,
  -- The host's port while it is public.
  public_port integer unique,
  -- What the caller said beside: kept, and answered.
  options jsonb not null default '{}',
  -- Its bytes were there once: a volume that is missing is not made anew.
  is_made boolean not null default false,
  auto_backup boolean not null default false,
  next_backup_at timestamptz,
  restart_count integer not null default 0,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- Deleted, and its machine, bytes and backups not all gone yet: nobody sees it.
  deleted_at timestamptz
);
create unique index addons_name on addons (project_id, name) where deleted_at is null;
create index addons_list on addons (project_id, created_at desc, id desc) where deleted_at is null;
create index addons_next_backup on addons (next_backup_at) where auto_backup and deleted_at is null;

create table backups (
  id uuid primary key default gen_random_uuid(),
  addon_id uuid not null references addons (id) on delete cascade,
  kind text not null check (kind in ('manual', 'auto', 'safety')),
  status text not null check (status in ('pending', 'running', 'completed', 'failed')),
  -- Where its bytes lie in the store.
  blob_key text,
  -- Of the add-on it was taken of.
  version text not null,
  size_bytes bigint,
  sha256 text,
  -- A restore into a throwaway instance compared equal.
  verified_at timestamptz,
  expires_at timestamptz,
  error text,
  attempts integer not null default 0,
  created_at timestamptz not null default now(),
  started_at timestamptz,
  finished_at timestamptz,
  -- Its bytes go with the next sweep.
  deleted_at timestamptz,
  check ((status in ('completed', 'failed')) = (finished_at is not null))
);
create index backups_list on backups (addon_id, created_at desc, id desc) where deleted_at is null;
create index backups_expiry on backups (expires_at) where deleted_at is null;
create unique index backups_one_running on backups (addon_id) where status in ('pending', 'running') and kind <> 'safety';

-- One that is carried out: into the same add-on or a new one.
create table restores (
  id uuid primary key default gen_random_uuid(),
  backup_id uuid not null references backups (id) on delete cascade,
  addon_id uuid not null references addons (id) on delete cascade,
  status text not null check (status in ('running', 'completed', 'failed')),
  error text,
  created_at timestamptz not null default now(),
  finished_at timestamptz
);
create unique index restores_one_running on restores (addon_id) where status = 'running';
