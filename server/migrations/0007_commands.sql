-- Background commands as their machine last told of them. While the machine lives, it is the truth; what stays here is
-- that a command was, and how it ended if anybody saw it. The machine chooses nothing here but numbers and times.

create table sandbox_commands (
  sandbox_id text not null references sandboxes (id) on delete cascade,
  id text not null,
  command text not null,
  tag text,
  pid bigint not null,
  status text not null check (status in ('running', 'exited', 'killed')),
  exit_code integer,
  started_at timestamptz not null,
  ended_at timestamptz,
  output_bytes bigint not null default 0,
  -- A machine may claim any id: it can only ever speak of its own sandbox's.
  primary key (sandbox_id, id),
  check ((status = 'running') = (ended_at is null))
);
create index sandbox_commands_list on sandbox_commands (sandbox_id, started_at desc, id desc);
