/** Connections that go: their rows at once, in the caller's transaction, and what their tokens can do by a job after it. */
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import type { Provider } from "./provider/metadata.ts";
import { type ConnectionRow, deleteClient, deleteConnections } from "./store.ts";

export const revokeTask = "agent.connection.revoke";

/** It names nobody. */
export interface Revocation {
  connection: string;
  /** Base64. */
  sealed: string;
  provider: Provider;
}

/** From minutes to about a day; then the provider is left alone. */
const revokeAttempts = 8;

/** Of one end user, on these toolsets; answers how many there were. */
export async function forgetConnections(
  tx: Db,
  toolsetIds: readonly string[],
  endUserId: string,
): Promise<number> {
  const gone = await deleteConnections(tx, toolsetIds, endUserId);
  await revokeLater(tx, gone);
  return gone.length;
}

/** Of everybody, with the client that was registered for them: the toolset goes, or speaks to somebody else now. */
export async function forgetSignIns(tx: Db, toolsetId: string): Promise<void> {
  await revokeLater(tx, await deleteConnections(tx, [toolsetId], null));
  await deleteClient(tx, toolsetId);
}

/** The client is given anew: the next sign-in says whom it is for. */
export async function forgetProvider(tx: Db, toolsetId: string): Promise<void> {
  await deleteClient(tx, toolsetId);
}

export async function revokeLater(
  tx: Db,
  connections: readonly Pick<ConnectionRow, "id" | "sealed" | "provider">[],
): Promise<void> {
  for (const { id, sealed, provider } of connections) {
    if (provider.revocation_endpoint === undefined) continue;
    const payload: Revocation = { connection: id, sealed: sealed.toString("base64"), provider };
    await addJob(tx, revokeTask, payload, { maxAttempts: revokeAttempts });
  }
}
