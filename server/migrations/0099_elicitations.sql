-- Approvals of kind `elicitation`: questions that the server of a tool asks a person during a call.

alter table agent_approvals
  -- A call may ask several questions.
  drop constraint agent_approvals_call_id_key,
  add column kind text not null default 'call' check (kind in ('call', 'elicitation')),
  -- {"message", "schema"} of an elicitation. Deleted with the run's other text an hour after its end.
  add column question json,
  -- Content of an answer, until the process that holds the call has read it.
  add column content json,
  add constraint agent_approvals_question_check check (kind = 'elicitation' or (question is null and content is null));

create unique index agent_approvals_of_call on agent_approvals (call_id) where kind = 'call';
create index agent_approvals_by_call on agent_approvals (call_id);
create index agent_approvals_open_questions on agent_approvals (run_id)
  where kind = 'elicitation' and status = 'pending';

-- A run whose call waits for an answer keeps its process, and its place there.
create or replace function agent_counts(workspace uuid, process uuid, out live_sessions bigint, out in_flight bigint, out here bigint)
language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock(hashtextextended(workspace::text, 42));
  select count(*) into live_sessions from agent_sessions where workspace_id = workspace and ended_at is null;
  -- `here`: runs that this process executes.
  select count(*), count(*) filter (where status = 'running' and process_id = process) into in_flight, here
  from agent_runs where workspace_id = workspace and status in ('queued', 'running') and not waits_turn;
  here := here + (select count(*) from agent_runs
    where workspace_id = workspace and status = 'pending_approval' and process_id = process);
end $$;

create index agent_runs_asking on agent_runs (workspace_id)
  where status = 'pending_approval' and process_id is not null;
