-- Progress of work under way, {step, percent, message}, as functions have it. Null when nothing is under way.

alter table deployments add column progress jsonb;
alter table addons add column progress jsonb;
