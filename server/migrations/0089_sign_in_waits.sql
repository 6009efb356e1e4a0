-- A run may wait until a person signs in to a toolset; the call that needed the sign-in is then made again.

create table agent_sign_in_waits (
  call_id text primary key references agent_tool_calls (id) on delete cascade,
  run_id text not null references agent_runs (id) on delete cascade,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  -- No foreign key: the deletion of the toolset ends the wait, and the run continues.
  toolset_id text not null,
  end_user_id text not null,
  -- Connection that was not sufficient. Null if the person had none. A sign-in makes a connection with another id.
  connection_id text,
  status text not null check (status in ('waiting', 'connected', 'expired', 'cancelled')),
  created_at timestamptz not null,
  -- The first wait of the call sets it, so that repeated sign-ins do not extend it.
  expires_at timestamptz not null
);
create index agent_sign_in_waits_of_run on agent_sign_in_waits (run_id);
create index agent_sign_in_waits_of_workspace on agent_sign_in_waits (workspace_id) where status = 'waiting';
create index agent_sign_in_waits_due on agent_sign_in_waits (expires_at) where status = 'waiting';
