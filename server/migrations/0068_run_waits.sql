-- A run that waits for an overloaded model is held by nobody until `retry_at`.

alter table agent_runs
  add column retry_at timestamptz,
  -- In a row, since its last whole step: each wait is longer than the one before.
  add column model_waits integer not null default 0;
