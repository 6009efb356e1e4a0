-- What the visitors of an environment were answered, minute by minute; kept for a day.
create table request_minutes (
  environment_id uuid not null references environments (id) on delete cascade,
  minute timestamptz not null,
  -- Who counted: every process of the server has rows of its own, and whoever reads adds them up.
  writer uuid not null,
  requests integer not null,
  errors integer not null,
  -- How long the answers took: a histogram, see platform/metrics/histogram.ts.
  latencies bytea not null,
  primary key (environment_id, minute, writer)
);
create index request_minutes_old on request_minutes (minute);

-- Whoever merely claims a name keeps nobody from it: it is the project's whose target the name's records name.
alter table projects drop constraint projects_custom_domain_key;
create unique index projects_domain_verified on projects (custom_domain) where domain_status = 'verified';
-- Looks in a row that did not find the records as they should be.
alter table projects add column domain_misses integer not null default 0;
create index projects_domains on projects (domain_checked_at nulls first) where custom_domain is not null;
