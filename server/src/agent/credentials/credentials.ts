/**
 * Keys of model providers. The address belongs to the key, not to an agent's config, so an author of configs cannot
 * send a key elsewhere. A key is stored encrypted, never returned, and decrypted only for the call that needs it.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { homeWorkspace, requireNotSuspended, workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { AddressError, checkAddress } from "#lib/network/checked-lookup.ts";
import { newId } from "#lib/ids.ts";
import { hintOf } from "#lib/secret-hint.ts";
import { invalidField } from "../errors.ts";
import { credentialLimitReached, credentialNotFound, fullAccessRequired } from "./errors.ts";
import { type Credential, type CredentialCreate, type CredentialUpdate, toCredential } from "./schema.ts";
import {
  type CredentialRow,
  credentialsByIds,
  deleteCredential,
  insertCredential,
  listCredentials,
  lockAndCount,
  updateCredential,
} from "./store.ts";

type Needs = Pick<App, "db" | "secrets" | "config" | "clock">;

const credentialsMax = 100;

export async function add(app: Needs, actor: Actor, input: CredentialCreate): Promise<Credential> {
  requireFullAccess(actor);
  const workspace = requireNotSuspended(homeWorkspace(actor));
  const address = input.base_url ?? null;
  if (address === null && input.provider === "openai_compatible")
    throw invalidField(["base_url"], "is required for openai_compatible");
  if (address !== null) {
    const opened = parseOpenedHosts(app.config.allowPrivateHosts);
    await checkAddress(new URL(address), opened, workspace.id).catch((error: unknown) => {
      throw error instanceof AddressError ? invalidField(["base_url"], error.message) : error;
    });
  }
  const id = newId("mcr_");
  const row = await app.db.transaction().execute(async (tx) => {
    if ((await lockAndCount(tx, workspace.id)) >= credentialsMax)
      throw credentialLimitReached(credentialsMax);
    const made = await insertCredential(tx, {
      id,
      workspace_id: workspace.id,
      provider: input.provider,
      name: input.name,
      api_key_sealed: app.secrets.seal(input.api_key, place(id)),
      hint: hintOf(input.api_key),
      base_url: address === null ? null : address.replace(/\/+$/, ""),
      created_at: app.clock.now(),
    });
    await recordActivity(tx, actor, "model_credential.created", target(made), workspace.id);
    return made;
  });
  return toCredential(row);
}

export async function list(app: Needs, actor: Actor): Promise<{ items: Credential[] }> {
  const rows = await listCredentials(app.db, workspaceIds(actor));
  return { items: rows.map(toCredential) };
}

export async function get(app: Needs, actor: Actor, id: string): Promise<Credential> {
  const found = (await list(app, actor)).items.find((credential) => credential.id === id);
  if (!found) throw credentialNotFound();
  return found;
}

/**
 * Updates a credential. Runs use a new key from their next call on. The address cannot change, so that a key is sent
 * only to its own provider.
 */
export async function update(
  app: Needs,
  actor: Actor,
  id: string,
  { name, api_key: key }: CredentialUpdate,
): Promise<Credential> {
  requireFullAccess(actor);
  const row = await app.db.transaction().execute(async (tx) => {
    const updated = await updateCredential(tx, id, workspaceIds(actor), {
      ...(name === undefined ? {} : { name }),
      ...(key === undefined ? {} : { api_key_sealed: app.secrets.seal(key, place(id)), hint: hintOf(key) }),
    });
    if (!updated) throw credentialNotFound();
    await recordActivity(tx, actor, "model_credential.updated", target(updated), updated.workspace_id);
    return updated;
  });
  return toCredential(row);
}

/** Deletes a credential. Versions that name the credential stay; their runs fail with `credential_missing`. */
export async function remove(app: Needs, actor: Actor, id: string): Promise<void> {
  requireFullAccess(actor);
  await app.db.transaction().execute(async (tx) => {
    const row = await deleteCredential(tx, id, workspaceIds(actor));
    if (!row) throw credentialNotFound();
    await recordActivity(tx, actor, "model_credential.deleted", target(row), row.workspace_id);
  });
}

/** Returns the existing credentials by id. */
export async function findCredentials(
  db: Db,
  workspaceId: string,
  ids: readonly string[],
): Promise<Map<string, CredentialRow>> {
  const rows = await credentialsByIds(db, workspaceId, ids);
  return new Map(rows.map((row) => [row.id, row]));
}

export function openKey(app: Pick<App, "secrets">, row: CredentialRow): string {
  return app.secrets.open(row.api_key_sealed, place(row.id)).toString("utf8");
}

function requireFullAccess(actor: Actor): void {
  if (actor.scopes !== null || actor.kind === "worker") throw fullAccessRequired();
}

function place(id: string): string {
  return `model_credentials:${id}:api_key`;
}

function target({ id, name }: CredentialRow): { kind: string; id: string; label: string } {
  return { kind: "model_credential", id, label: name };
}
