-- Sandboxes that begin where another one stands, and snapshots that are kept under a name to begin from.

alter table sandboxes
  -- The sandbox it was forked from, or the named snapshot it was made from; either may be gone.
  add column forked_from text,
  add column snapshot_id text,
  -- A clone that is being made: it counts for every limit, and nobody sees it.
  add column reserved boolean not null default false;

alter table snapshots
  drop constraint snapshots_owner_kind_check,
  add constraint snapshots_owner_kind_check check (owner_kind in ('sandbox', 'named')),
  -- Its bytes are gone or not what they were: nothing is started from it any more.
  add column damaged boolean not null default false;

-- What a caller knows of a named snapshot; the bytes are those of the row of `snapshots` with the same id.
create table sandbox_snapshots (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  name text,
  -- What it was taken of, which may be gone.
  sandbox_id text not null,
  template text not null,
  template_id text,
  start_command_id text,
  size text not null,
  cpu double precision not null,
  memory_mb integer not null,
  region text not null references regions (code),
  created_at timestamptz not null,
  -- The last use and the tier's retention; null: kept for ever.
  expires_at timestamptz
);

create unique index sandbox_snapshots_name on sandbox_snapshots (workspace_id, name);
create index sandbox_snapshots_list on sandbox_snapshots (workspace_id, created_at desc, id desc);
create index sandbox_snapshots_expiry on sandbox_snapshots (expires_at) where expires_at is not null;
