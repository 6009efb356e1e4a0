-- How often somebody resumed the run after it failed; each time its limits are granted once more.

alter table agent_runs add column resumes integer not null default 0;
