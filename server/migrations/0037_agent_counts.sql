-- What an account's plan counts of agents, held: who else counts waits until this transaction ends. A function, because
-- each statement of one sees what was committed while it waited, and the statement that asks it would not.

create function agent_counts(workspace uuid, process uuid, out live_sessions bigint, out in_flight bigint, out here bigint)
language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock(hashtextextended(workspace::text, 42));
  select count(*) into live_sessions from agent_sessions where workspace_id = workspace and ended_at is null;
  -- `here`: those that this process carries out.
  select count(*), count(*) filter (where status = 'running' and process_id = process) into in_flight, here
  from agent_runs where workspace_id = workspace and status in ('queued', 'running');
end $$;
