-- What people signed in to for agents, the links by which they do, and as whom this server is known where they do.

create table agent_connections (
  -- Part of what its tokens are sealed for; a new one with every sign-in.
  id text primary key,
  toolset_id text not null references agent_toolsets (id) on delete cascade,
  -- '-': the account's owner.
  end_user_id text not null,
  status text not null default 'connected' check (status in ('connected', 'needs_reauth')),
  -- As granted; null where that was not said.
  scope text,
  -- The token's; null: it has no end that was said.
  expires_at timestamptz,
  connected_at timestamptz not null,
  -- JSON: the tokens, and the client that they belong to.
  sealed bytea not null,
  -- Where that client asks for tokens, as its metadata said at the sign-in.
  provider jsonb not null,
  -- Whom the tokens are for (RFC 8707); null where nobody said.
  resource text,
  -- Until then somebody asks for newer tokens, and nobody else does.
  refreshing_until timestamptz,
  unique (toolset_id, end_user_id)
);
create index agent_connections_end_user on agent_connections (end_user_id);

create table agent_connect_links (
  -- SHA-256 of what its address ends with.
  nonce_hash bytea primary key,
  toolset_id text not null references agent_toolsets (id) on delete cascade,
  end_user_id text not null,
  return_url text,
  created_at timestamptz not null,
  -- Moved once, when it is opened.
  expires_at timestamptz not null,
  opened_at timestamptz,
  -- Of the browser that opened it, and of the state that it was sent on with.
  cookie_hash bytea,
  state_hash bytea unique,
  -- JSON: the PKCE verifier, and the client.
  sealed bytea,
  provider jsonb,
  resource text,
  scope text,
  -- When a callback came for it.
  used_at timestamptz
);
create index agent_connect_links_end_user on agent_connect_links (end_user_id);
create index agent_connect_links_expiry on agent_connect_links (expires_at);

-- Clients that were registered for a toolset by this server itself (RFC 7591).
create table agent_oauth_clients (
  toolset_id text primary key references agent_toolsets (id) on delete cascade,
  issuer text not null,
  redirect_uri text not null,
  client_id text not null,
  sealed bytea not null,
  -- The secret's; null: it has none.
  expires_at timestamptz
);
