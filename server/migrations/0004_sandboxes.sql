create table sandboxes (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  template text not null,
  size text not null,
  cpu double precision not null,
  memory_mb integer not null,
  network text not null check (network in ('off', 'restricted', 'open')),
  region text not null references regions (code),
  status text not null check (status in ('running', 'paused', 'terminated')),
  transition text check (transition in ('pausing', 'resuming', 'terminating')),
  termination_reason text check (
    termination_reason in ('requested', 'timeout', 'out_of_memory', 'snapshot_expired', 'host_lost', 'start_failed')
  ),
  on_timeout text not null check (on_timeout in ('kill', 'pause')),
  auto_resume boolean not null,
  timeout_seconds integer not null,
  expires_at timestamptz not null,
  preview_token_sealed bytea,
  allow_domains text[],
  metadata jsonb not null,
  -- CPU used by machines that are gone; the running one's is read from its host.
  cpu_seconds double precision not null default 0,
  -- When the present run began, and the seconds of earlier ones.
  running_since timestamptz,
  running_seconds double precision not null default 0,
  created_at timestamptz not null default now(),
  terminated_at timestamptz,
  check ((status = 'terminated') = (terminated_at is not null))
);

-- The list: newest first, per workspace; ids break ties so that a cursor never skips one.
create index sandboxes_list on sandboxes (workspace_id, created_at desc, id desc);
create index sandboxes_deadline on sandboxes (expires_at) where status = 'running';
create index sandboxes_live on sandboxes (workspace_id) where status in ('running', 'paused');
create index sandboxes_metadata on sandboxes using gin (metadata jsonb_path_ops);
create index sandboxes_terminated on sandboxes (terminated_at) where status = 'terminated';
