-- Since when the machines of a suspended workspace are frozen. Deadlines move by that time once they go on.

alter table workspaces add column held_since timestamptz;
create index workspaces_suspended on workspaces (id) where suspended_at is not null or held_since is not null;
