-- Files that outlive sandboxes. The row is the truth of whether a volume exists, where its bytes lie and who has it:
-- bytes are made at its first use, and go before their row does.
create table sandbox_volumes (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  name text not null,
  size_gb integer not null check (size_gb between 1 and 100),
  region text not null references regions (code),
  host_id text not null references hosts (id),
  -- Its bytes were there once: one whose bytes are missing is not made anew.
  is_made boolean not null default false,
  -- The one sandbox that has it, running or paused.
  sandbox_id text references sandboxes (id) deferrable initially deferred,
  -- The region it is on its way to.
  moving_to text references regions (code),
  -- Nobody sees it any more; its bytes may still be there.
  deleted_at timestamptz,
  created_at timestamptz not null,
  check (sandbox_id is null or (moving_to is null and deleted_at is null))
);
create unique index sandbox_volumes_name on sandbox_volumes (workspace_id, name) where deleted_at is null;
create unique index sandbox_volumes_sandbox on sandbox_volumes (sandbox_id) where sandbox_id is not null;
create index sandbox_volumes_list on sandbox_volumes (workspace_id, created_at desc, id desc);

-- The volume a sandbox was made with, also when that is gone.
alter table sandboxes add column volume_id text;

-- What a machine has at /persist, as its host was told: {"id", "region", "sizeBytes"}.
alter table machines add column volume jsonb;
alter table snapshots add column volume jsonb;
create index machines_volume on machines ((volume ->> 'id')) where volume is not null;
