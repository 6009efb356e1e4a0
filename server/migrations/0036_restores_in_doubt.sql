-- Since when it cannot be found out whether what is restored is in its place; null where it was not asked, or was answered.
alter table restores add column in_doubt_since timestamptz;
