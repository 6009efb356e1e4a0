-- What a run of an agent acts by, and the trace it is part of.

-- Of an agent-class token: the run it was minted for, with which it goes. Tokens of runs are deleted when they end,
-- not kept as revoked: nobody has seen them, and there is one for each run that acts.
alter table api_tokens add column run_id text references agent_runs (id) on delete cascade;
create index api_tokens_run on api_tokens (run_id) where run_id is not null;

-- W3C Trace Context, as the caller gave it; whoever goes on with the run goes on in the same trace.
alter table agent_runs add column traceparent text check (length(traceparent) = 55);
