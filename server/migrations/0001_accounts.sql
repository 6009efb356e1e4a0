-- Who there is. A workspace owns every resource: a person's own one, or a team's. Plans, tiers and suspension are
-- the workspace's, so that a change of either needs one row.

create table installation (
  -- One row, ever.
  singleton boolean primary key default true check (singleton),
  id uuid not null default gen_random_uuid(),
  created_at timestamptz not null default now(),
  -- A known text sealed with the installation's key: a server that cannot open it holds the wrong key.
  secrets_canary bytea
);
insert into installation default values;

create table users (
  id uuid primary key default gen_random_uuid(),
  -- Stored in lower case, so that two spellings of one address are one account.
  email text not null unique check (email = lower(email)),
  name text not null,
  password_hash text not null,
  is_operator boolean not null default false,
  created_at timestamptz not null default now()
);

create table workspaces (
  -- A team's id is its workspace's id.
  id uuid primary key default gen_random_uuid(),
  kind text not null check (kind in ('personal', 'team')),
  -- Whose personal workspace it is; a team's owners are among its members.
  owner_user_id uuid references users (id) on delete cascade,
  name text not null,
  plan text not null default 'starter' check (plan in ('starter', 'pro', 'team')),
  sandbox_tier text not null default 'free' check (sandbox_tier in ('free', 'payg', 'enterprise')),
  suspended_at timestamptz,
  created_at timestamptz not null default now(),
  check ((kind = 'personal') = (owner_user_id is not null))
);
create unique index workspaces_one_personal on workspaces (owner_user_id) where kind = 'personal';

create table team_members (
  workspace_id uuid not null references workspaces (id) on delete cascade,
  user_id uuid not null references users (id) on delete cascade,
  role text not null check (role in ('owner', 'admin', 'member')),
  created_at timestamptz not null default now(),
  primary key (workspace_id, user_id)
);
create index team_members_user on team_members (user_id);

-- Sign-ins of the console. As with tokens only a SHA-256 (hex) is stored: what leaks opens nothing.
create table sessions (
  id uuid primary key default gen_random_uuid(),
  user_id uuid not null references users (id) on delete cascade,
  token_hash text not null unique check (length(token_hash) = 64),
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  last_seen_at timestamptz not null default now(),
  user_agent text,
  ip text
);
create index sessions_user on sessions (user_id);
create index sessions_expiry on sessions (expires_at);

create table api_tokens (
  id text primary key check (id like 'tok\_%'),
  user_id uuid not null references users (id) on delete cascade,
  name text not null,
  -- The first characters, for a person who compares; the rest is known to its holder alone.
  prefix text not null,
  token_hash text not null unique check (length(token_hash) = 64),
  -- Null: full access.
  scopes text[],
  class text not null default 'user' check (class in ('user', 'agent')),
  -- The agent an agent-class token acts as.
  worker_id uuid,
  -- Null: all that the user can reach.
  workspace_id uuid references workspaces (id) on delete cascade,
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz,
  check ((class = 'agent') = (worker_id is not null))
);
create index api_tokens_user on api_tokens (user_id, created_at desc);

-- What was done, by whom. Names are copied: an entry outlives what it speaks of.
create table activity (
  id uuid primary key default gen_random_uuid(),
  at timestamptz not null default now(),
  actor_kind text not null check (actor_kind in ('user', 'api_token', 'worker', 'system')),
  actor_id text not null,
  actor_label text not null,
  actor_role text,
  action text not null,
  target_kind text not null,
  target_id text,
  target_label text,
  workspace_id uuid references workspaces (id) on delete cascade,
  ip text,
  detail jsonb not null default '{}'
);
create index activity_list on activity (workspace_id, at desc, id desc);
create index activity_actor on activity (actor_id, at desc);

-- The first answer to a request that must not happen twice.
create table idempotency_keys (
  -- Token id, or `user:` and the user id for a sign-in session.
  caller text not null,
  route text not null,
  key text not null,
  body_hash text not null,
  state text not null check (state in ('running', 'done')),
  status integer,
  headers jsonb,
  body jsonb,
  created_at timestamptz not null default now(),
  -- The server process that runs it, to tell a slow request from one that died.
  process_id uuid not null,
  expires_at timestamptz not null,
  primary key (caller, route, key),
  check ((state = 'done') = (status is not null))
);
create index idempotency_keys_expiry on idempotency_keys (expires_at);
