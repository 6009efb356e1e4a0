-- What should run, and where. A machine belongs to one host; only that host's process talks to its runtime.
-- `desired` is what we want, `observed` what the host last said; reconcile brings the second to the first.

create table regions (
  code text primary key,
  name text not null
);

create table hosts (
  id text primary key,
  region text not null references regions (code),
  address text not null,
  state text not null check (state in ('joining', 'ready', 'draining', 'lost', 'retired')),
  -- Counts up at every registration; an order of an older epoch is refused.
  epoch bigint not null default 1,
  lease_until timestamptz not null,
  cpu_class text not null,
  runtime_builds text[] not null,
  vcpus double precision not null,
  memory_bytes bigint not null,
  disk_bytes bigint not null,
  labels jsonb not null default '{}'
);

-- A root file system on one host, made from a recipe in templates/.
create table host_images (
  host_id text not null references hosts (id) on delete cascade,
  name text not null,
  state text not null check (state in ('preparing', 'ready', 'failed')),
  image_id text,
  contents jsonb not null default '{}',
  substituted boolean not null default false,
  size_bytes bigint,
  error text,
  updated_at timestamptz not null default now(),
  primary key (host_id, name)
);

create table machines (
  id text primary key,
  host_id text not null references hosts (id),
  host_epoch bigint not null,
  generation bigint not null default 1,
  -- Which pool a warm machine waits in: the template and the size. Null where it was made to order.
  pool_key text,
  image_id text not null,
  owner_kind text not null check (owner_kind in ('pool', 'sandbox')),
  owner_id text,
  vcpus double precision not null,
  memory_bytes bigint not null,
  disk_bytes bigint not null,
  max_processes integer not null,
  network text not null check (network in ('off', 'restricted', 'open')),
  hostname text not null,
  -- The base environment, sealed: it may hold the owner's secrets.
  env_sealed bytea,
  desired text not null check (desired in ('running', 'frozen', 'removed')),
  observed text not null check (observed in ('starting', 'ready', 'dead')),
  -- Whether another host may take it over when this one is lost.
  takeover text not null default 'none' check (takeover in ('none', 'auto')),
  created_at timestamptz not null default now(),
  claimed_at timestamptz
);

create index machines_warm on machines (host_id, pool_key, created_at)
  where owner_kind = 'pool' and desired = 'frozen' and observed = 'ready';
create index machines_host on machines (host_id);
create unique index machines_owner on machines (owner_kind, owner_id)
  where owner_id is not null and desired <> 'removed';
