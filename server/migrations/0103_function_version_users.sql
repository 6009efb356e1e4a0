-- Person behind a version's trigger, as in deployments (0086): null for the server itself, and after the person's
-- account is deleted. The address is read from users, so the row does not keep it.

alter table function_versions add column trigger_user_id uuid references users on delete set null;
create index function_versions_trigger_user on function_versions (trigger_user_id) where trigger_user_id is not null;

update function_versions v set trigger_user_id = u.id
from users u
where v.trigger_actor ->> 'kind' = 'user' and u.id::text = v.trigger_actor ->> 'id';

update function_versions v set trigger_user_id = t.user_id
from api_tokens t
where v.trigger_actor ->> 'kind' = 'api_token' and t.id::text = v.trigger_actor ->> 'id';

-- The label of a session was the person's address.
update function_versions set trigger_actor = trigger_actor || '{"label": "deleted account"}'
where trigger_actor ->> 'kind' = 'user';
