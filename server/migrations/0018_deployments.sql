-- The host that carries it out: whose server goes on with it, should one end meanwhile. Null until it is begun.
alter table deployments add column host_id text references hosts (id);
create index deployments_running on deployments (host_id) where status in ('building', 'deploying');
create index deployments_waiting on deployments (created_at) where status = 'queued';
