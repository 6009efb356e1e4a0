-- Questions to people: may this call of a tool be made?

create table agent_approvals (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  run_id text not null references agent_runs (id) on delete cascade,
  call_id text not null unique references agent_tool_calls (id) on delete cascade,
  -- As the model calls it.
  tool text not null,
  -- As they were when somebody was asked: what is approved is this and nothing else.
  arguments json not null,
  status text not null check (status in ('pending', 'approved', 'denied', 'expired', 'cancelled')),
  -- Of the run's version: the model is told, or the run fails.
  on_expire text not null check (on_expire in ('deny', 'fail')),
  created_at timestamptz not null,
  expires_at timestamptz not null,
  decided_at timestamptz,
  -- {"kind", "id", "label"}; null where nobody decided.
  decided_by json,
  check ((status = 'pending') = (decided_at is null))
);
-- A run asks one question at a time.
create unique index agent_approvals_one_of_run on agent_approvals (run_id) where status = 'pending';
create index agent_approvals_of_run on agent_approvals (run_id);
create index agent_approvals_pending on agent_approvals (workspace_id, created_at desc, id desc)
  where status = 'pending';
create index agent_approvals_due on agent_approvals (expires_at) where status = 'pending';

-- How often it went on after a decision: that it was taken anew for that is no sign of a fault.
alter table agent_runs add column resumed integer not null default 0;

alter table agent_tool_calls drop constraint agent_tool_calls_status_check;
alter table agent_tool_calls add constraint agent_tool_calls_status_check
  check (status in ('requested', 'running', 'completed', 'failed', 'denied', 'expired', 'unknown'));
