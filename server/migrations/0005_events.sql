-- What happened to sandboxes, templates and volumes: facts, written in the transaction of the change itself.

create table sandbox_events (
  seq bigint generated always as identity primary key,
  -- The event's place in the feed, given after its transaction committed; null until somebody looks. Transactions end
  -- in another order than they write, so a number given inside one could appear below one that a reader has passed.
  position bigint unique,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  event text not null,
  -- Null where the event is of no sandbox. Outlives it.
  sandbox_id text,
  at timestamptz not null,
  outcome text not null check (outcome in ('ok', 'failed')),
  summary text,
  detail jsonb not null,
  actor jsonb not null
);
create index sandbox_events_feed on sandbox_events (workspace_id, position desc);
create index sandbox_events_of_sandbox on sandbox_events (sandbox_id, position desc);
create index sandbox_events_unnumbered on sandbox_events (seq) where position is null;
create index sandbox_events_age on sandbox_events (at);

-- The last position given, which must outlive the events: numbers are never used again.
create table sandbox_event_counter (
  singleton boolean primary key default true check (singleton),
  last bigint not null
);
insert into sandbox_event_counter (last) values (0);
