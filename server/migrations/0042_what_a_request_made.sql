-- What a request with an Idempotency-Key made, noted in the transaction that makes it: a retry after a server that died
-- before it stored its answer is told of that, and makes no second one. A list, because some make several.
-- `made`: its request ended without an answer after that.

alter table idempotency_keys add column made jsonb;
alter table idempotency_keys drop constraint idempotency_keys_state_check;
alter table idempotency_keys add constraint idempotency_keys_state_check
  check (state in ('running', 'made', 'done'));
alter table idempotency_keys add constraint idempotency_keys_made_check
  check (state <> 'made' or made is not null);

-- Notes of runs stood in `body`, as the text of what their answers are made of.
update idempotency_keys set made = jsonb_build_array((body #>> '{}')::jsonb), body = null
where state = 'running' and body is not null;
