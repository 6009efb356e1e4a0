-- Triggers run for an end user, in a session found by a key, and with a version. A run whose session is busy waits for its turn.

alter table agent_webhooks
  -- Templates, filled from each delivery. Null: none.
  add column end_user_id text,
  add column session text,
  -- Alias, version number or `latest`.
  add column qualifier text not null default 'prod';

alter table agent_schedules
  add column end_user_id text,
  -- Sessions are found by it as it stands. Null: each time begins its own.
  add column session text,
  add column qualifier text not null default 'prod';
create index agent_webhooks_of_end_user on agent_webhooks (agent_id, end_user_id) where end_user_id is not null;
create index agent_schedules_of_end_user on agent_schedules (agent_id, end_user_id) where end_user_id is not null;

alter table agent_sessions
  add column trigger_id text,
  -- SHA-256 of the rendered key, which may identify a person.
  add column trigger_key bytea;
create unique index agent_sessions_of_trigger on agent_sessions (trigger_id, trigger_key, coalesce(end_user_id, ''))
  where ended_at is null and trigger_id is not null;

-- True until the runs before it in its session are over. No process executes it, and no plan counts it.
alter table agent_runs add column waits_turn boolean not null default false;
drop index agent_runs_one_in_session;
create unique index agent_runs_one_in_session on agent_runs (session_id)
  where status in ('queued', 'running', 'pending_approval') and not waits_turn;

-- Input of runs that wait for their turn, in their order.
create table agent_turns (
  position bigint generated always as identity primary key,
  run_id text not null unique references agent_runs (id) on delete cascade,
  session_id text not null references agent_sessions (id) on delete cascade,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  message json not null,
  -- Runs in flight that the plan allowed when the run was accepted.
  in_flight_max integer not null,
  expires_at timestamptz not null
);
create index agent_turns_of_session on agent_turns (session_id, position);
create index agent_turns_of_workspace on agent_turns (workspace_id);
create index agent_turns_expiry on agent_turns (expires_at);

create or replace function agent_counts(workspace uuid, process uuid, out live_sessions bigint, out in_flight bigint, out here bigint)
language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock(hashtextextended(workspace::text, 42));
  select count(*) into live_sessions from agent_sessions where workspace_id = workspace and ended_at is null;
  -- `here`: runs that this process executes.
  select count(*), count(*) filter (where status = 'running' and process_id = process) into in_flight, here
  from agent_runs where workspace_id = workspace and status in ('queued', 'running') and not waits_turn;
end $$;
