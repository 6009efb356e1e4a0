-- A paused machine: all of it on a host's disk, and what it takes to run it again. The row is the truth: bytes without a
-- row are a leftover, and a row exists only once its bytes are written, hashed and synced.
create table snapshots (
  id text primary key,
  owner_kind text not null check (owner_kind in ('sandbox')),
  owner_id text not null,
  -- The machine it was taken of, and its generation then.
  machine text not null,
  generation bigint not null,
  -- Where the bytes lie: on a host, in the blob store, or both.
  host_id text references hosts (id),
  blob_key text,
  -- Of the list of the files' own hashes.
  sha256 text not null,
  bytes bigint not null,
  -- It restores only on a host that has both.
  cpu_class text not null,
  runtime_build text not null,
  image_id text not null,
  vcpus double precision not null,
  memory_bytes bigint not null,
  disk_bytes bigint not null,
  max_processes integer not null,
  network text not null check (network in ('off', 'restricted', 'open')),
  hostname text not null,
  env_sealed bytea,
  reason text not null check (reason in ('explicit', 'deadline')),
  stored_at timestamptz not null,
  -- Null: kept for ever.
  expires_at timestamptz,
  check (host_id is not null or blob_key is not null)
);

create unique index snapshots_owner on snapshots (owner_kind, owner_id);
create index snapshots_expiry on snapshots (expires_at) where expires_at is not null;

-- Set from a resume's reservation to its commit: a machine that has it is nobody's yet, and its owner still paused.
alter table machines add column snapshot_id text;

create index sandboxes_moving on sandboxes (id) where transition is not null;
