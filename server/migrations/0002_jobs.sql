-- Server processes and their heartbeats. The jobs themselves are graphile-worker's, in its own schema; a process
-- that stopped beating loses the locks of its worker pool (graphile-worker alone waits 4 hours for that).

create table processes (
  id uuid primary key,
  host_id text,
  -- graphile-worker's `locked_by` of this process; null until its worker runs.
  worker_pool text,
  version text not null,
  started_at timestamptz not null default now(),
  seen_at timestamptz not null default now()
);
create index processes_seen on processes (seen_at);
