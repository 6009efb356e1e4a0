-- Entries about a person, whose address goes from them when the account is deleted.

create index activity_about_people on activity (target_id) where target_kind = 'user';
