-- Person behind a deployment's trigger: the user of the session, token or worker. Null for the server itself, and
-- after the person's account is deleted. Name and address are read from users, so the row keeps neither.

alter table deployments add column trigger_user_id uuid references users on delete set null;
create index deployments_trigger_user on deployments (trigger_user_id) where trigger_user_id is not null;

update deployments d set trigger_user_id = u.id
from users u
where d.trigger_actor ->> 'kind' = 'user' and u.id::text = d.trigger_actor ->> 'id';

update deployments d set trigger_user_id = t.user_id
from api_tokens t
where d.trigger_actor ->> 'kind' = 'api_token' and t.id::text = d.trigger_actor ->> 'id';

-- The label of a session was the person's address.
update deployments set trigger_actor = trigger_actor || '{"label": "deleted account"}'
where trigger_actor ->> 'kind' = 'user';
