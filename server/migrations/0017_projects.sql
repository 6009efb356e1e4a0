-- A deleted environment, or one of a deleted project: nobody sees it, its host is free, and its app is on its way out.
alter table environments add column deleted_at timestamptz;

-- In-product news. One row for the workspace; who of its members has read it stands in a row of their own.
create table notifications (
  id uuid primary key default gen_random_uuid(),
  workspace_id uuid not null references workspaces (id) on delete cascade,
  kind text not null,
  title text not null,
  body text not null,
  -- {kind, id, label}
  target jsonb not null,
  created_at timestamptz not null default now()
);
create index notifications_list on notifications (workspace_id, created_at desc, id desc);

create table notification_reads (
  notification_id uuid not null references notifications (id) on delete cascade,
  user_id uuid not null references users (id) on delete cascade,
  read_at timestamptz not null default now(),
  primary key (notification_id, user_id)
);
