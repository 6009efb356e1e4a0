-- What a backup holds, as one hash: a restore has to come out with the same. Null where it was not compared.
alter table backups add column contents text;

-- What was there is kept first, where a restore replaces it.
alter table restores
  add column safety_backup_id uuid references backups (id) on delete set null,
  add column attempts integer not null default 0;
create index restores_list on restores (addon_id, created_at desc, id desc);

-- The daily backup that was due then did not come in time, and its owner was told so.
alter table addons add column backup_missed_at timestamptz;
