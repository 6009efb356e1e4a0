-- What agents remember of whom they speak with, and the ways to all that is one person's: an erasure goes by them.

create table agent_memories (
  agent_id text not null references agents (id) on delete cascade,
  -- `-`: of runs without an end user.
  end_user_id text not null,
  key text not null,
  value text not null,
  -- The run that saved it last. A run goes with its end user alone, and so does what it saved.
  run_id text not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (agent_id, end_user_id, key)
);

create index agent_sessions_of_end_user on agent_sessions (agent_id, end_user_id) where end_user_id is not null;
create index agent_messages_of_run on agent_messages (run_id) where run_id is not null;
