-- Entries stay when their workspace goes: the id is kept, and the operator can still read them.
alter table activity drop constraint activity_workspace_id_fkey;

-- Entries of one transaction keep their order.
alter table activity alter column at set default clock_timestamp();

-- The person behind the actor: the owner of a token or a worker. The address is copied, for it outlives the account.
alter table activity add column person_id uuid;
alter table activity add column person_email text;
-- Reads and runs, which change no row: written behind the request, and left out of the list unless wanted.
alter table activity add column is_access boolean not null default false;

create index activity_person on activity (person_id, at desc);
create index activity_at on activity (at);
