-- 'hidden': answers to the token hold hints in place of secrets.
alter table api_tokens
  add column secrets text not null default 'shown' check (secrets in ('shown', 'hidden'));
