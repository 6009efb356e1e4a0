-- What a server asked for beyond what somebody granted (RFC 6750, 3.1), until a link is opened that asks them for it.
alter table agent_connections add column wanted text;

-- The same, from then on: a browser that opens the link again is sent on with it again.
alter table agent_connect_links add column wanted text;
