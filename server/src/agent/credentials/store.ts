/** All SQL of the model credentials. The caller's workspaces are an argument of every function. */
import { type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { ModelCredentialsTable } from "./tables.ts";

export type CredentialRow = Selectable<ModelCredentialsTable>;

const among = (workspaceIds: readonly string[]) => sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`;

/** Counts credentials, and blocks other creations in the workspace until the transaction ends. */
export async function lockAndCount(tx: Db, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 41))`.execute(tx);
  const { count } = await tx
    .selectFrom("model_credentials")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .executeTakeFirstOrThrow();
  return Number(count);
}

export function insertCredential(tx: Db, credential: CredentialRow): Promise<CredentialRow> {
  return tx.insertInto("model_credentials").values(credential).returningAll().executeTakeFirstOrThrow();
}

export function listCredentials(db: Db, workspaceIds: readonly string[]): Promise<CredentialRow[]> {
  return db
    .selectFrom("model_credentials")
    .selectAll()
    .where("workspace_id", "=", among(workspaceIds))
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .execute();
}

export function credentialsByIds(
  db: Db,
  workspaceId: string,
  ids: readonly string[],
): Promise<CredentialRow[]> {
  return db
    .selectFrom("model_credentials")
    .selectAll()
    .where("workspace_id", "=", workspaceId)
    .where("id", "=", sql<string>`any(${sql.val([...ids])}::text[])`)
    .execute();
}

export function updateCredential(
  tx: Db,
  id: string,
  workspaceIds: readonly string[],
  change: Partial<Pick<CredentialRow, "name" | "api_key_sealed" | "hint">>,
): Promise<CredentialRow | undefined> {
  return tx
    .updateTable("model_credentials")
    .set(change)
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .returningAll()
    .executeTakeFirst();
}

export function deleteCredential(
  tx: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<CredentialRow | undefined> {
  return tx
    .deleteFrom("model_credentials")
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .returningAll()
    .executeTakeFirst();
}
