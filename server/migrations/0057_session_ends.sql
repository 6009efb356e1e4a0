-- A session ends by itself: with its run where it is ephemeral, and otherwise once it is unused for `idle_minutes`.
-- Sessions that callers began before there was an end by itself keep the longest time there is.

alter table agent_sessions
  add column idle_minutes integer not null default 60,
  add column is_ephemeral boolean not null default false;

update agent_sessions set idle_minutes = 43200 where not is_triggered;

drop index agent_sessions_triggered;
alter table agent_sessions drop column is_triggered;
create index agent_sessions_living on agent_sessions (last_used_at) where ended_at is null;
create index agent_sessions_living_ephemeral on agent_sessions (id) where ended_at is null and is_ephemeral;
