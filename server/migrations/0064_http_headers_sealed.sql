-- Header values of HTTP tools, sealed: JSON of a list of [tool, {header: value}]. `http_tools` holds a hint in place of
-- each value. The server seals the values of older rows when it starts.

alter table agent_toolsets add column http_headers_sealed bytea;

-- Stored answers hold header values as well. A retry is answered from the row instead.

update idempotency_keys set state = 'made', status = null, headers = null, body = null
where route = 'createAgentToolset' and state = 'done' and status < 400 and made is not null;

delete from idempotency_keys
where route = 'createAgentToolset' and state = 'done' and status < 400 and made is null;
