-- Why a command's process was ended where it was not by its own doing. Null for every other end.

alter table sandbox_commands add column killed_by text check (killed_by = 'out_of_memory');
