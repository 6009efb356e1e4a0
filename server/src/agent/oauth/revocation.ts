/**
 * Deletes connections. The caller's transaction deletes the rows, and then a job revokes the tokens at the provider.
 */
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import type { Provider } from "./provider/metadata.ts";
import { type ConnectionRow, deleteClient, deleteConnections } from "./store.ts";

export const revokeTask = "agent.connection.revoke";

/** Payload of the revocation job, without any id of a person. */
export interface Revocation {
  connection: string;
  /** Encrypted tokens in base64. */
  sealed: string;
  provider: Provider;
}

/** Maximum number of attempts to revoke. With backoff, these attempts span about a day. */
const revokeAttempts = 8;

/** Deletes one end user's connections to these toolsets, and returns the number of deleted connections. */
export async function revokeConnections(
  tx: Db,
  toolsetIds: readonly string[],
  endUserId: string,
): Promise<number> {
  const gone = await deleteConnections(tx, toolsetIds, endUserId);
  await queueRevocations(tx, gone);
  return gone.length;
}

/**
 * Deletes all connections of a toolset and its registered client, because the toolset is deleted or moves to another
 * server.
 */
export async function revokeAllConnections(tx: Db, toolsetId: string): Promise<void> {
  await queueRevocations(tx, await deleteConnections(tx, [toolsetId], null));
  await deleteClient(tx, toolsetId);
}

/**
 * Deletes the pinned client after an update of the client's settings. The next sign-in pins the new client to its
 * provider.
 */
export async function unpinClient(tx: Db, toolsetId: string): Promise<void> {
  await deleteClient(tx, toolsetId);
}

export async function queueRevocations(
  tx: Db,
  connections: readonly Pick<ConnectionRow, "id" | "sealed" | "provider">[],
): Promise<void> {
  for (const { id, sealed, provider } of connections) {
    if (provider.revocation_endpoint === undefined) continue;
    const payload: Revocation = { connection: id, sealed: sealed.toString("base64"), provider };
    await addJob(tx, revokeTask, payload, { maxAttempts: revokeAttempts });
  }
}
