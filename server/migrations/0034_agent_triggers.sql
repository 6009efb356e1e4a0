-- What starts agents by itself: schedules and webhooks.

create table agent_schedules (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  agent_id text not null references agents (id) on delete cascade,
  name text,
  -- As it was said: a cron expression, a preset, or `every …`.
  schedule text not null,
  timezone text not null,
  message text not null,
  -- What `every …` counts from.
  anchor timestamptz not null,
  -- Null: switched off.
  next_run_at timestamptz,
  last_run_at timestamptz,
  last_run_id text,
  -- Null: as its last run.
  last_status text check (last_status in ('skipped', 'refused')),
  last_error text,
  consecutive_failures integer not null default 0,
  disabled_reason text,
  created_at timestamptz not null
);
create index agent_schedules_list on agent_schedules (agent_id, created_at desc, id desc);
create index agent_schedules_due on agent_schedules (next_run_at) where next_run_at is not null;

-- Each time a schedule came round, and what came of it: never twice.
create table agent_schedule_ticks (
  schedule_id text not null references agent_schedules (id) on delete cascade,
  tick timestamptz not null,
  -- `running` until its run's end was counted.
  status text not null check (status in ('running', 'completed', 'failed', 'stopped', 'refused', 'skipped')),
  reason text,
  run_id text references agent_runs (id) on delete set null,
  at timestamptz not null,
  primary key (schedule_id, tick)
);
create index agent_schedule_ticks_running on agent_schedule_ticks (at) where status = 'running';
create index agent_schedule_ticks_of_run on agent_schedule_ticks (run_id) where run_id is not null;
create index agent_schedule_ticks_age on agent_schedule_ticks (at) where status <> 'running';

create table agent_webhooks (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  agent_id text not null references agents (id) on delete cascade,
  name text not null,
  -- Sealed and not hashed, because signatures are made with it.
  secret_sealed bytea not null,
  secret_hint text not null,
  input_template text not null,
  -- Null: none.
  daily_cap integer,
  enabled boolean not null default true,
  -- The UTC midnight since which `runs_counted` counts.
  counted_since timestamptz not null,
  runs_counted integer not null default 0,
  created_at timestamptz not null
);
create index agent_webhooks_list on agent_webhooks (agent_id, created_at desc, id desc);

-- By the sender's own id, as its hash: the same delivery starts one run.
create table agent_webhook_deliveries (
  webhook_id text not null references agent_webhooks (id) on delete cascade,
  delivery bytea not null,
  run_id text not null,
  session_id text not null,
  received_at timestamptz not null,
  primary key (webhook_id, delivery)
);
create index agent_webhook_deliveries_age on agent_webhook_deliveries (received_at);

-- Begun by no caller: nobody may ever come back to it.
alter table agent_sessions add column is_triggered boolean not null default false;
create index agent_sessions_triggered on agent_sessions (last_used_at) where is_triggered and ended_at is null;
