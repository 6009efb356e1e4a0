-- Why the model ended its last answer, so that an answer which a token limit cut off is known as such.

alter table agent_runs add column finish_reason text;
