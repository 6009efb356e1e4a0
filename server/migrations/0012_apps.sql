-- Apps that run: what serves an environment now, what is to serve it next, and what served it and is being let go.

alter table machines
  drop constraint machines_owner_kind_check,
  add constraint machines_owner_kind_check check (owner_kind in ('pool', 'sandbox', 'build', 'app')),
  -- What holds it: a kernel of its own, or the host's.
  add column isolation text not null default 'gvisor' check (isolation in ('gvisor', 'native'));

-- One start of one deployment. It has a machine at a time, and in that its process; both may be replaced.
create table app_instances (
  -- The owner of its machines.
  id text primary key,
  environment_id uuid not null references environments (id) on delete cascade,
  deployment_id uuid not null references deployments (id) on delete cascade,
  state text not null check (state in ('starting', 'live', 'asleep', 'draining')),
  -- {image, argv, cwd, user, port, health_check_path, isolation, size, hostname}
  run jsonb not null,
  -- What its process is given, and the variables that is made of; sealed to the instance.
  env_sealed bytea not null,
  -- How often a process was begun: its command in the machine is `app-<starts>`.
  starts integer not null default 0,
  -- Of those, the ones that followed an end nobody had asked for.
  restart_count integer not null default 0,
  -- Ends that followed each other closely; and what is said of the last.
  crashes_in_row integer not null default 0,
  last_exit_code integer,
  last_exit text,
  crashed boolean not null default false,
  started_at timestamptz,
  created_at timestamptz not null default now()
);
create index app_instances_environment on app_instances (environment_id);
create index app_instances_deployment on app_instances (deployment_id);
-- At most one serves, or sleeps in its place.
create unique index app_instances_one_live on app_instances (environment_id) where state in ('live', 'asleep');
