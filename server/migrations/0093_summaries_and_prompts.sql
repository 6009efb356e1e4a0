-- Summaries of a conversation's older messages, and what each step of a run was rendered from.

alter table agent_messages drop constraint agent_messages_kind_check;
-- A `summary` holds, in `through`, the sequence number of the last message that it covers.
alter table agent_messages add constraint agent_messages_kind_check
  -- Not validated: existing rows hold a kind of the shorter list, and a scan would lock a large table.
  check (kind in ('seed', 'input', 'answer', 'repair', 'tools', 'summary')) not valid;

-- Null: not recorded, or deleted with the run's output.
alter table agent_steps add column prompt json;
