-- Deployments of an image of a registry, in place of a commit: its reference, and the digest that the reference led to.
-- A project's credential of a registry {registry, username, password} is sealed like its other secrets.

alter table deployments add column image_reference text;
alter table deployments add column image_digest text;
alter table projects add column registry_sealed bytea;
