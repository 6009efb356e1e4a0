-- Sessions and what was said in them, runs, and their journal.

create table agent_sessions (
  id text primary key,
  agent_id text not null references agents (id) on delete cascade,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  -- Null: of nobody in particular.
  end_user_id text,
  -- The version it is pinned to.
  version integer not null,
  -- Of the message that is last.
  last_message integer not null default 0,
  created_at timestamptz not null,
  last_used_at timestamptz not null,
  ended_at timestamptz,
  foreign key (agent_id, version) references agent_versions (agent_id, version) on delete cascade
);
create index agent_sessions_list on agent_sessions (agent_id, created_at desc, id desc);
create index agent_sessions_live on agent_sessions (workspace_id) where ended_at is null;

create table agent_runs (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  agent_id text not null references agents (id) on delete cascade,
  session_id text not null references agent_sessions (id) on delete cascade,
  session_created boolean not null,
  version integer not null,
  end_user_id text,
  trigger_type text not null check (trigger_type in ('api', 'schedule', 'webhook')),
  trigger_id text,
  status text not null check (status in ('queued', 'running', 'pending_approval', 'completed', 'failed')),
  error_code text,
  error_message text,
  output text,
  output_expires_at timestamptz,
  -- Its output and what its events say are gone.
  expired boolean not null default false,
  steps integer not null default 0,
  input_tokens bigint not null default 0,
  output_tokens bigint not null default 0,
  cached_input_tokens bigint not null default 0,
  reasoning_tokens bigint not null default 0,
  -- How long it was worked on; the time it waits for a person is not counted.
  active_ms bigint not null default 0,
  last_event_id integer not null default 0,
  -- The process that carries it out, and how often it was taken: the number fences off who had it before.
  process_id uuid,
  attempts integer not null default 0,
  created_at timestamptz not null,
  started_at timestamptz,
  finished_at timestamptz,
  check ((status in ('completed', 'failed')) = (finished_at is not null))
);
-- Whether a session is busy is asked here and kept nowhere else.
create unique index agent_runs_one_in_session on agent_runs (session_id)
  where status in ('queued', 'running', 'pending_approval');
create index agent_runs_in_flight on agent_runs (workspace_id) where status in ('queued', 'running');
create index agent_runs_list on agent_runs (agent_id, created_at desc, id desc);
create index agent_runs_of_workspace on agent_runs (workspace_id, created_at desc, id desc);
create index agent_runs_expiry on agent_runs (output_expires_at) where not expired;

-- The conversation: only ever added to.
create table agent_messages (
  session_id text not null references agent_sessions (id) on delete cascade,
  seq integer not null,
  -- Null for what a session began with.
  run_id text references agent_runs (id) on delete cascade,
  kind text not null check (kind in ('seed', 'input', 'answer', 'repair', 'tools')),
  message json not null,
  primary key (session_id, seq)
);

-- One for each model call that was heard out; what usage is counted from.
create table agent_steps (
  run_id text not null references agent_runs (id) on delete cascade,
  step integer not null,
  agent_id text not null references agents (id) on delete cascade,
  end_user_id text,
  model text not null,
  finish_reason text not null,
  input_tokens bigint not null,
  output_tokens bigint not null,
  cached_input_tokens bigint not null,
  reasoning_tokens bigint not null,
  started_at timestamptz not null,
  finished_at timestamptz not null,
  primary key (run_id, step)
);
create index agent_steps_usage on agent_steps (agent_id, finished_at);

create table agent_events (
  run_id text not null references agent_runs (id) on delete cascade,
  seq integer not null,
  type text not null,
  at timestamptz not null,
  data json not null,
  primary key (run_id, seq)
);

create table agent_toolsets (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  name text not null,
  kind text not null check (kind in ('http')),
  url text not null,
  -- Null: `Authorization`, as a bearer's.
  auth_header_name text,
  auth_secret_sealed bytea,
  secret_hint text,
  http_tools json not null,
  tool_overrides json not null,
  created_at timestamptz not null,
  unique (workspace_id, name)
);

-- Written before a call begins and after it ended: one that began and did not end is not known to have happened.
create table agent_tool_calls (
  id text primary key,
  run_id text not null references agent_runs (id) on delete cascade,
  step integer not null,
  position integer not null,
  -- As the model calls it.
  tool text not null,
  toolset_id text,
  arguments json not null,
  status text not null check (status in ('requested', 'running', 'completed', 'failed', 'denied', 'unknown')),
  -- What the model is told.
  result text,
  started_at timestamptz,
  finished_at timestamptz,
  unique (run_id, step, position)
);
