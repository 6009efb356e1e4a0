/** All SQL of connections, sign-in links and registered OAuth clients. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { AgentConnectionsTable, AgentConnectLinksTable, AgentOauthClientsTable } from "./tables.ts";

export type ConnectionRow = Selectable<AgentConnectionsTable>;
export type LinkRow = Selectable<AgentConnectLinksTable>;
export type ClientRow = Selectable<AgentOauthClientsTable>;

export function findConnection(
  db: Db,
  toolsetId: string,
  endUserId: string,
): Promise<ConnectionRow | undefined> {
  return db
    .selectFrom("agent_connections")
    .selectAll()
    .where("toolset_id", "=", toolsetId)
    .where("end_user_id", "=", endUserId)
    .executeTakeFirst();
}

/** Locks the connection's row until the transaction ends, and returns the row. */
export function lockConnection(
  tx: Db,
  toolsetId: string,
  endUserId: string,
): Promise<ConnectionRow | undefined> {
  return tx
    .selectFrom("agent_connections")
    .selectAll()
    .where("toolset_id", "=", toolsetId)
    .where("end_user_id", "=", endUserId)
    .forUpdate()
    .executeTakeFirst();
}

/** Sets the scopes that the next sign-in requests in addition to the granted scopes. */
export async function setRequiredScopes(tx: Db, id: string, wanted: string | null): Promise<void> {
  await tx.updateTable("agent_connections").set({ wanted }).where("id", "=", id).execute();
}

/** Clears the required scopes after a link requested them. Scopes that a call added meanwhile stay. */
export async function clearRequiredScopes(tx: Db, { id, wanted }: ConnectionRow): Promise<void> {
  await tx
    .updateTable("agent_connections")
    .set({ wanted: null })
    .where("id", "=", id)
    .where("wanted", "=", wanted)
    .execute();
}

/** Lists the owner's connection first, then the others by their last sign-in. */
export function listConnections(db: Db, toolsetId: string): Promise<ConnectionRow[]> {
  return db
    .selectFrom("agent_connections")
    .selectAll()
    .where("toolset_id", "=", toolsetId)
    .orderBy(sql`end_user_id = '-'`, "desc")
    .orderBy("connected_at", "desc")
    .orderBy("end_user_id")
    .execute();
}

/** Inserts a connection. Replaces an existing connection of the same end user. */
export async function putConnection(tx: Db, connection: Insertable<AgentConnectionsTable>): Promise<void> {
  await tx
    .insertInto("agent_connections")
    .values(connection)
    .onConflict((conflict) =>
      conflict.columns(["toolset_id", "end_user_id"]).doUpdateSet((eb) => ({
        id: eb.ref("excluded.id"),
        status: eb.ref("excluded.status"),
        scope: eb.ref("excluded.scope"),
        expires_at: eb.ref("excluded.expires_at"),
        connected_at: eb.ref("excluded.connected_at"),
        sealed: eb.ref("excluded.sealed"),
        provider: eb.ref("excluded.provider"),
        resource: eb.ref("excluded.resource"),
        refreshing_until: null,
        wanted: null,
      })),
    )
    .execute();
}

/**
 * Acquires the refresh lease and returns the connection's row. Returns undefined if another process holds the lease, or
 * if the tokens are fresh by now.
 */
export function acquireRefreshLease(
  db: Db,
  id: string,
  { staleAt, now, until }: { staleAt: Date; now: Date; until: Date },
): Promise<ConnectionRow | undefined> {
  return db
    .updateTable("agent_connections")
    .set({ refreshing_until: until })
    .where("id", "=", id)
    .where("status", "=", "connected")
    .where("expires_at", "<=", staleAt)
    .where((eb) => eb.or([eb("refreshing_until", "is", null), eb("refreshing_until", "<=", now)]))
    .returningAll()
    .executeTakeFirst();
}

/**
 * Stores the change and releases the refresh lease. Returns false if the connection was deleted, or if another process
 * acquired the lease.
 */
export async function releaseRefreshLease(
  db: Db,
  { id, refreshing_until }: Pick<ConnectionRow, "id" | "refreshing_until">,
  change: Partial<Pick<ConnectionRow, "status" | "scope" | "expires_at" | "sealed">>,
): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable("agent_connections")
    .set({ ...change, refreshing_until: null })
    .where("id", "=", id)
    .where("refreshing_until", "=", refreshing_until)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** Marks the access token as expired. */
export async function expireConnection(db: Db, id: string, at: Date): Promise<void> {
  await db.updateTable("agent_connections").set({ expires_at: at }).where("id", "=", id).execute();
}

/**
 * Deletes the connections of one end user, or all connections if `endUserId` is null. Locks the toolsets first, in the
 * order of their ids, so that concurrent deletions do not deadlock. Then deletes the links, and so waits for a callback
 * that has locked a link.
 */
export async function deleteConnections(
  tx: Db,
  toolsetIds: readonly string[],
  endUserId: string | null,
): Promise<ConnectionRow[]> {
  const among = sql<string>`any(${sql.val([...toolsetIds])}::text[])`;
  await tx
    .selectFrom("agent_toolsets")
    .select("id")
    .where("id", "=", among)
    .orderBy("id")
    .forNoKeyUpdate()
    .execute();
  await tx
    .deleteFrom("agent_connect_links")
    .where("toolset_id", "=", among)
    .$if(endUserId !== null, (query) => query.where("end_user_id", "=", endUserId!))
    .execute();
  return tx
    .deleteFrom("agent_connections")
    .where("toolset_id", "=", among)
    .$if(endUserId !== null, (query) => query.where("end_user_id", "=", endUserId!))
    .returningAll()
    .execute();
}

/**
 * Locks the toolset against changes. Returns false if the toolset is deleted. Callers lock the toolset before its links
 * and connections. Operations that change or delete the toolset use the same order.
 */
export async function lockToolsetForShare(tx: Db, id: string): Promise<boolean> {
  const row = await tx
    .selectFrom("agent_toolsets")
    .select("id")
    .where("id", "=", id)
    .forKeyShare()
    .executeTakeFirst();
  return row !== undefined;
}

/** Thrown for a link to a toolset that was deleted meanwhile. */
export class ToolsetDeleted extends Error {
  override readonly name = "ToolsetDeleted";
}

/** Inserts a link, and deletes expired links. Throws `ToolsetDeleted`. */
export async function insertLink(
  tx: Db,
  link: Pick<
    LinkRow,
    "nonce_hash" | "toolset_id" | "end_user_id" | "return_url" | "created_at" | "expires_at"
  >,
  forgottenBefore: Date,
): Promise<void> {
  if (!(await lockToolsetForShare(tx, link.toolset_id))) throw new ToolsetDeleted();
  await tx
    .deleteFrom("agent_connect_links")
    .where("nonce_hash", "in", (eb) =>
      eb
        .selectFrom("agent_connect_links")
        .select("nonce_hash")
        .where("expires_at", "<", forgottenBefore)
        .forUpdate()
        .skipLocked(),
    )
    .execute();
  await tx.insertInto("agent_connect_links").values(link).execute();
}

export function findLink(
  db: Db,
  by: { nonce_hash: Buffer } | { state_hash: Buffer },
): Promise<LinkRow | undefined> {
  const [column, value] = Object.entries(by)[0] as ["nonce_hash" | "state_hash", Buffer];
  return db.selectFrom("agent_connect_links").selectAll().where(column, "=", value).executeTakeFirst();
}

/** Marks the link as opened by a browser. Returns false if another browser opened the link meanwhile. */
export async function markLinkOpened(
  db: Db,
  { nonce_hash, cookie_hash }: Pick<LinkRow, "nonce_hash" | "cookie_hash">,
  change: Pick<
    Insertable<AgentConnectLinksTable>,
    "expires_at" | "opened_at" | "cookie_hash" | "state_hash"
  > & {
    sealed: Buffer;
    provider: string;
    resource: string | null;
    scope: string | null;
    wanted: string | null;
  },
): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable("agent_connect_links")
    .set(change)
    .where("nonce_hash", "=", nonce_hash)
    .where("used_at", "is", null)
    .where("cookie_hash", "is not distinct from", cookie_hash)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** Marks the link as used. Returns false if the link was used already. */
export async function markLinkUsed(db: Db, stateHash: Buffer, at: Date): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable("agent_connect_links")
    .set({ used_at: at })
    .where("state_hash", "=", stateHash)
    .where("used_at", "is", null)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** Locks the link until the transaction ends. Returns false if the link does not exist. */
export async function lockLink(tx: Db, nonceHash: Buffer): Promise<boolean> {
  const row = await tx
    .selectFrom("agent_connect_links")
    .select("nonce_hash")
    .where("nonce_hash", "=", nonceHash)
    .forUpdate()
    .executeTakeFirst();
  return row !== undefined;
}

export function findClient(db: Db, toolsetId: string): Promise<ClientRow | undefined> {
  return db
    .selectFrom("agent_oauth_clients")
    .selectAll()
    .where("toolset_id", "=", toolsetId)
    .executeTakeFirst();
}

export async function putClient(db: Db, client: ClientRow): Promise<void> {
  const { toolset_id: _, ...change } = client;
  await db
    .insertInto("agent_oauth_clients")
    .values(client)
    .onConflict((conflict) => conflict.column("toolset_id").doUpdateSet(change))
    .execute();
}

/**
 * Pins the toolset's client to an issuer if the client has none, and returns the client's issuer. Returns undefined if
 * the toolset or this client no longer exists.
 */
export async function pinClient(tx: Db, client: ClientRow): Promise<string | undefined> {
  const { toolset_id: id, client_id } = client;
  const toolset = await tx
    .selectFrom("agent_toolsets")
    .select("oauth_client_id")
    .where("id", "=", id)
    .forKeyShare()
    .executeTakeFirst();
  if (toolset?.oauth_client_id !== client_id) return undefined;
  const { toolset_id: _, ...change } = client;
  await tx
    .insertInto("agent_oauth_clients")
    .values(client)
    .onConflict((conflict) =>
      // Replaces a client that was registered before the toolset had a client of its own.
      conflict
        .column("toolset_id")
        .doUpdateSet(change)
        .where("agent_oauth_clients.client_id", "!=", client_id),
    )
    .execute();
  return (await findClient(tx, id))?.issuer;
}

/** Deletes a registered client that the provider no longer accepts. */
export async function deleteRegisteredClient(db: Db, toolsetId: string, clientId: string): Promise<void> {
  await db
    .deleteFrom("agent_oauth_clients")
    .where("toolset_id", "=", toolsetId)
    .where("client_id", "=", clientId)
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom("agent_toolsets")
            .select("id")
            .where("id", "=", toolsetId)
            .where("oauth_client_id", "=", clientId),
        ),
      ),
    )
    .execute();
}

/** Deletes the toolset's client and its pin. The next sign-in discovers the provider again. */
export async function deleteClient(db: Db, toolsetId: string): Promise<void> {
  await db.deleteFrom("agent_oauth_clients").where("toolset_id", "=", toolsetId).execute();
}
