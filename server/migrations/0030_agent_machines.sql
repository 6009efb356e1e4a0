-- The machine of a session: a sandbox like any other, and whose it is.

create table agent_machines (
  -- No reference: this row outlives its session, and goes when the sandbox is gone.
  session_id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  -- The row comes and changes with the sandbox's own; that one may be gone by now.
  sandbox_id text not null,
  -- awake: in use, or was within park_after_seconds. parking: on its way to disk; nothing is begun in it. parked: on
  -- disk until a tool needs it. lost: gone, and a run was told. ending: its session ended.
  state text not null check (state in ('awake', 'parking', 'parked', 'lost', 'ending')),
  -- Of the version that used it last.
  park_after_seconds integer not null,
  -- By a tool; the runs of the session say more.
  last_used_at timestamptz not null,
  -- The run that was told that it is lost: it gets no other one.
  lost_in text,
  check ((state = 'lost') = (lost_in is not null))
);
create index agent_machines_idle on agent_machines (last_used_at) where state = 'awake';
create index agent_machines_parking on agent_machines (session_id) where state = 'parking';
-- Which run of a session is its newest.
create index agent_runs_of_session on agent_runs (session_id, created_at desc);
