-- Functions: a handler's code, what it is built into, and the instances that answer for it.

alter table machines
  drop constraint machines_owner_kind_check,
  add constraint machines_owner_kind_check
    check (owner_kind in ('pool', 'sandbox', 'build', 'app', 'function', 'addon'));
alter table snapshots
  drop constraint snapshots_owner_kind_check,
  add constraint snapshots_owner_kind_check check (owner_kind in ('sandbox', 'named', 'function'));

create table functions (
  id uuid primary key default gen_random_uuid(),
  workspace_id uuid not null references workspaces (id) on delete cascade,
  -- The slug: one name space with projects, `<name>.fn.<apps_domain>`.
  name text not null unique,
  runtime text not null check (runtime in ('nodejs', 'python')),
  handler_code text not null,
  -- {name: version}
  dependencies jsonb not null default '{}',
  auth_mode text not null default 'none' check (auth_mode in ('none', 'api_key')),
  -- SHA-256 of the key, and its first characters; null with `none`.
  api_key_hash bytea,
  api_key_hint text,
  idle_timeout_seconds integer not null default 300,
  env_sealed bytea,
  memory_mb integer not null default 256,
  timeout_seconds integer not null default 30,
  region text not null references regions (code),
  -- Code or dependencies have changed since what is live was built.
  pending_deploy boolean not null default true,
  -- What is served; null before the first deploy.
  live_version_id text,
  last_deployed_at timestamptz,
  -- Why the last deploy failed; null where it went live.
  error text,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- Deleted, and its machines and images not all gone yet: nobody sees it.
  deleted_at timestamptz,
  check ((auth_mode = 'api_key') = (api_key_hash is not null))
);
create index functions_list on functions (workspace_id, created_at desc, id desc) where deleted_at is null;

-- One deploy: code and dependencies as they were then.
create table function_versions (
  id text primary key,
  function_id uuid not null references functions (id) on delete cascade,
  -- Counts up within the function.
  number integer not null,
  state text not null check (state in ('building', 'live', 'failed', 'superseded')),
  runtime text not null,
  handler_code text not null,
  dependencies jsonb not null,
  -- What the installer resolved them to, in its own format; the same dependencies are installed from it again.
  lock text,
  -- The host's image; null until it is built, and once it is wanted no more. Versions that are equal have one and the same.
  image_id text,
  -- Of all that goes into the image but the lock: versions with the same one and the same lock are equal.
  content_hash bytea,
  -- Where it is built; null until somebody begins to. How many servers have begun to.
  host_id text references hosts (id),
  attempts integer not null default 0,
  error text,
  created_at timestamptz not null default now(),
  finished_at timestamptz,
  unique (function_id, number),
  check ((state = 'building') = (finished_at is null))
);
create unique index function_versions_one_building on function_versions (function_id) where state = 'building';
create unique index function_versions_one_live on function_versions (function_id) where state = 'live';

-- One running copy of a version. Frozen it keeps its memory, asleep it is a snapshot on disk; either way it goes on where it was.
create table function_instances (
  -- The owner of its machine, and of its snapshot.
  id text primary key,
  function_id uuid not null references functions (id) on delete cascade,
  version_id text not null references function_versions (id) on delete cascade,
  state text not null check (state in ('starting', 'running', 'frozen', 'asleep', 'ending')),
  -- What its processes were started with, sealed to the instance.
  env_sealed bytea,
  created_at timestamptz not null default now(),
  last_used_at timestamptz not null default now()
);
create index function_instances_function on function_instances (function_id);
create index function_instances_version on function_instances (version_id);

-- What callers of a function were answered, minute by minute; kept for a day. See request_minutes.
create table function_minutes (
  function_id uuid not null references functions (id) on delete cascade,
  minute timestamptz not null,
  writer uuid not null,
  requests integer not null,
  errors integer not null,
  latencies bytea not null,
  -- Starts from nothing that somebody waited for; wakes of any kind with what they took, a histogram.
  cold_starts integer not null,
  wakes bytea not null,
  primary key (function_id, minute, writer)
);
create index function_minutes_old on function_minutes (minute);
