-- Who wants to hear of events, and what is still to be delivered. A delivery is written in the transaction of the
-- event, with its exact bytes: every attempt sends the same.

create table sandbox_webhooks (
  id text primary key,
  workspace_id uuid not null references workspaces (id) on delete cascade,
  url text not null,
  -- Null: all events, those to come as well.
  event_types text[],
  secret_sealed bytea not null,
  active boolean not null default true,
  -- Deliveries, not attempts.
  consecutive_failures integer not null default 0,
  last_delivery_at timestamptz,
  last_error text,
  created_at timestamptz not null,
  -- Who delivers at present, and until when that counts without a sign of life.
  lease uuid,
  leased_until timestamptz
);
create index sandbox_webhooks_list on sandbox_webhooks (workspace_id, created_at desc);

create table sandbox_webhook_deliveries (
  -- The order within a lane: a sandbox's changes follow one another, so its events do.
  seq bigint generated always as identity primary key,
  id uuid not null unique,
  webhook_id text not null references sandbox_webhooks (id) on delete cascade,
  -- Deliveries of one lane go one after the other: the sandbox's id, or the delivery's own where it is of none.
  lane text not null,
  event text not null,
  body text not null,
  attempts integer not null default 0,
  due_at timestamptz not null
);
create index sandbox_webhook_deliveries_lane on sandbox_webhook_deliveries (webhook_id, lane, seq);
create index sandbox_webhook_deliveries_order on sandbox_webhook_deliveries (webhook_id, seq);
