-- Git: what of hosted repositories was told to deployments, which deliveries of forges came, and whom ssh trusts.

alter table projects
  -- Host keys of its ssh repository, as lines of a known_hosts file: those seen first.
  add column known_hosts text,
  -- Which forge signed the last delivery.
  add column hook_provider text;

-- Heads of hosted repositories whose push is dealt with. What the repository holds beyond them was pushed while the
-- server died, and is told of at the next start.
create table git_heads (
  project_id uuid not null references projects (id) on delete cascade,
  branch text not null,
  sha text not null,
  primary key (project_id, branch)
);

-- Deliveries that were acted upon, by the id the forge gave them: the same one again does nothing.
create table git_deliveries (
  project_id uuid not null references projects (id) on delete cascade,
  delivery_id text not null,
  at timestamptz not null,
  primary key (project_id, delivery_id)
);
