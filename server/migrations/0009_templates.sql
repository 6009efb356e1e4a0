-- Images made here of a base image and shell steps, which run in a machine of the build's own; and sandbox templates,
-- which are what such an image is to its owner.

alter table machines drop constraint machines_owner_kind_check;
alter table machines add constraint machines_owner_kind_check
  check (owner_kind in ('pool', 'sandbox', 'build'));

-- A build's id is that of the image it makes. The row is there for as long as the image is wanted.
create table builds (
  id text primary key,
  -- Whose it is: who hears of its end.
  owner_kind text not null check (owner_kind in ('template')),
  host_id text not null references hosts (id),
  -- Name of the image it starts from.
  base text not null,
  steps jsonb not null,
  network text not null check (network in ('restricted', 'open')),
  status text not null check (status in ('queued', 'running', 'succeeded', 'failed')),
  -- How often it was begun: a server that ends begins it again.
  attempts integer not null default 0,
  -- The step that runs, or ran last, from 1.
  step integer,
  error text,
  -- What of its log is kept; the rest of its output is dropped past a limit.
  log_bytes bigint not null default 0,
  log_truncated boolean not null default false,
  created_at timestamptz not null default now(),
  started_at timestamptz,
  ended_at timestamptz,
  check ((status in ('succeeded', 'failed')) = (ended_at is not null))
);
create index builds_under_way on builds (host_id, created_at, id) where status in ('queued', 'running');

create table build_logs (
  build_id text not null references builds (id) on delete cascade,
  seq bigint generated always as identity,
  step integer not null,
  at timestamptz not null,
  text text not null,
  primary key (build_id, seq)
);

create table templates (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  name text not null,
  base_template text not null,
  recipe jsonb not null,
  network text not null check (network in ('restricted', 'open')),
  description text,
  -- To be assigned when it is ready.
  wanted_tags text[] not null,
  start_command text,
  -- The same in every sandbox made from it: a command's id is unique in its sandbox.
  start_command_id text,
  status text not null check (status in ('building', 'ready', 'failed')),
  error_message text,
  size_bytes bigint,
  contents jsonb not null default '{}',
  substituted boolean not null default false,
  created_at timestamptz not null,
  built_at timestamptz,
  check ((status = 'ready') = (built_at is not null))
);
create index templates_list on templates (workspace_id, created_at desc, id desc);
create index templates_name on templates (workspace_id, name);

create table template_tags (
  workspace_id uuid not null,
  name text not null,
  tag text not null,
  template_id text not null references templates (id) on delete cascade,
  primary key (workspace_id, name, tag)
);
create index template_tags_template on template_tags (template_id);

-- `template` is what the caller asked for; this is what that was then. No reference: the sandbox outlives it.
alter table sandboxes add column template_id text;
alter table sandboxes add column start_command_id text;
