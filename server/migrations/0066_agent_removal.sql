-- Agents are archived and deleted, and so are versions. An ended session outlives its version.

-- Null: it is in use.
alter table agents add column archived_at timestamptz;

alter table agent_sessions alter column version drop not null;
alter table agent_sessions drop constraint agent_sessions_agent_id_version_fkey;
alter table agent_sessions add constraint agent_sessions_version_fkey
  foreign key (agent_id, version) references agent_versions (agent_id, version) on delete set null (version);
-- Whether a version is in use.
create index agent_sessions_of_version on agent_sessions (agent_id, version);
