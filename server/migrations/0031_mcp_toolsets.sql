-- Toolsets whose tools are those of an MCP server, and those that people sign in to.

alter table agent_toolsets
  drop constraint agent_toolsets_kind_check,
  add constraint agent_toolsets_kind_check check (kind in ('http', 'mcp')),
  add column auth_type text not null default 'none' check (auth_type in ('none', 'header', 'oauth')),
  -- Which connector of the catalog it was made from.
  add column catalog_slug text,
  -- A client that was registered beforehand; null where none was.
  add column oauth_client_id text,
  add column oauth_client_secret_sealed bytea,
  -- As OAuth writes them, with spaces between; null: what the server asks for.
  add column oauth_scopes text,
  -- Whether each end user signs in for themselves, or the owner for all.
  add column oauth_per_end_user boolean not null default false,
  -- What an MCP server said of its tools when they were last read. json: the order of a schema's properties is part of it.
  add column tools_cached json not null default '[]',
  -- How the last try to read them ended.
  add column status text not null default 'ready' check (status in ('ready', 'unreachable', 'auth_required')),
  -- Null: they were never read.
  add column last_refreshed_at timestamptz,
  add column last_error text;

update agent_toolsets set auth_type = 'header' where auth_secret_sealed is not null;
