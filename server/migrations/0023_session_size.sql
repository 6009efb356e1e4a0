-- How much was said in a session: a model is told no more of it than fits into memory, and there is an end to it.

-- Of JSON text.
alter table agent_messages add column bytes integer not null default 0;
update agent_messages set bytes = octet_length(message::text);
alter table agent_messages alter column bytes drop default;

-- Of all its messages.
alter table agent_sessions add column bytes bigint not null default 0;
update agent_sessions as s
set bytes = m.bytes
from (select session_id, sum(bytes) as bytes from agent_messages group by session_id) as m
where m.session_id = s.id;
