-- A tool call that runs a command in its session's machine names the command before the command starts. The next server
-- process finds the command by it.

alter table agent_tool_calls
  -- Set when a call that runs a command begins. Null for every other call.
  add column command_id text,
  -- The sandbox that the command runs in. Null until the command is about to start: until then it has not started.
  add column command_sandbox_id text,
  -- The command's own time limit in seconds.
  add column command_seconds integer,
  add constraint agent_tool_calls_command check (
    (command_sandbox_id is null) = (command_seconds is null) and (command_sandbox_id is null or command_id is not null)
  );

-- Commands that may run: the look for those whose run is over reads nothing else.
create index agent_tool_calls_commands on agent_tool_calls (run_id)
  where command_sandbox_id is not null and status = 'running';
