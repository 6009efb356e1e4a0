-- Images that projects' builds made. A row outlives its image: a deployment names it by its tag.
create table app_images (
  -- Of the host's image.
  id text primary key,
  project_id uuid not null references projects (id) on delete cascade,
  host_id text not null,
  -- Counts up within the project: tag b<number>.
  number integer not null,
  digest text not null,
  size_bytes bigint not null,
  -- {argv, port, health_check_path, user, cwd}
  run jsonb not null,
  -- Null once that is forgotten.
  deployment_id uuid,
  -- The last look for known faults, as it was answered; null before the first.
  scan jsonb,
  created_at timestamptz not null default now(),
  -- Its image is gone, or goes as soon as nothing runs on it.
  pruned_at timestamptz,
  unique (project_id, number)
);
create index app_images_list on app_images (project_id, created_at desc) where pruned_at is null;
create index app_images_host on app_images (host_id) where pruned_at is null;
