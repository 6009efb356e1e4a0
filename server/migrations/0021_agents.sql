-- Agents, their immutable versions, the names that point at versions, and the keys of models.

create table agents (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  name text not null,
  description text,
  paused boolean not null default false,
  -- As who it acts on the platform.
  worker_id uuid not null unique default gen_random_uuid(),
  latest_version integer not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  unique (workspace_id, name)
);
create index agents_list on agents (workspace_id, created_at desc, id desc);

create table agent_versions (
  agent_id text not null references agents (id) on delete cascade,
  version integer not null check (version > 0),
  -- Whole, with every default of its day filled in. json, not jsonb: the order of a schema's properties is part of it.
  config json not null,
  notes text,
  -- {"kind", "id", "label"}
  created_by jsonb not null,
  created_at timestamptz not null,
  primary key (agent_id, version)
);

create table agent_aliases (
  agent_id text not null,
  name text not null,
  version integer not null,
  updated_at timestamptz not null,
  primary key (agent_id, name),
  foreign key (agent_id, version) references agent_versions (agent_id, version) on delete cascade
);

-- A row where every agent of a workspace is paused.
create table agent_pauses (
  workspace_id uuid primary key references workspaces (id) on delete cascade,
  paused_at timestamptz not null
);

create table model_credentials (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  provider text not null check (provider in ('anthropic', 'openai', 'mistral', 'openai_compatible')),
  name text not null,
  api_key_sealed bytea not null,
  hint text not null,
  -- Null: the provider's own.
  base_url text,
  created_at timestamptz not null
);
create index model_credentials_list on model_credentials (workspace_id, created_at desc, id desc);
