/** All SQL of memory. Callers have already checked access to the agent. */
import { type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { AgentMemoriesTable } from "./tables.ts";

export type FactRow = Selectable<AgentMemoriesTable>;
export type Fact = Pick<FactRow, "key" | "value">;

/** Owner of facts: an agent and an end user. `endUserId` is `-` for runs without an end user. */
export interface Owner {
  agentId: string;
  endUserId: string;
}

const factsOf = (db: Db, { agentId, endUserId }: Owner) =>
  db.selectFrom("agent_memories").where("agent_id", "=", agentId).where("end_user_id", "=", endUserId);

/** Saves a fact. Returns false, and saves nothing, if the fact would exceed a limit. */
export async function saveFact(
  tx: Db,
  owner: Owner,
  fact: Fact & { runId: string; at: Date },
  allowed: { entries: number; bytes: number },
): Promise<boolean> {
  const { key, value, runId, at } = fact;
  const { agentId, endUserId } = owner;
  // The lock orders two runs of one end user that save concurrently.
  await sql`select pg_advisory_xact_lock(hashtextextended(${`${agentId}/${endUserId}`}, 44))`.execute(tx);
  const others = await factsOf(tx, owner)
    .select(sql<number>`count(*)`.as("entries"))
    .select(sql<number>`coalesce(sum(octet_length(key) + octet_length(value)), 0)::bigint`.as("bytes"))
    .where("key", "<>", key)
    .executeTakeFirstOrThrow();
  const bytes = others.bytes + Buffer.byteLength(key) + Buffer.byteLength(value);
  if (others.entries >= allowed.entries || bytes > allowed.bytes) return false;
  const saved = { value, run_id: runId, updated_at: at };
  await tx
    .insertInto("agent_memories")
    .values({ agent_id: agentId, end_user_id: endUserId, key, created_at: at, ...saved })
    .onConflict((conflict) => conflict.columns(["agent_id", "end_user_id", "key"]).doUpdateSet(saved))
    .execute();
  return true;
}

/** Deletes one fact or all facts, and returns the number of deleted facts. */
export async function deleteFacts(tx: Db, { agentId, endUserId }: Owner, key?: string): Promise<number> {
  let query = tx
    .deleteFrom("agent_memories")
    .where("agent_id", "=", agentId)
    .where("end_user_id", "=", endUserId);
  if (key !== undefined) query = query.where("key", "=", key);
  const { numDeletedRows } = await query.executeTakeFirstOrThrow();
  return Number(numDeletedRows);
}

export function listFacts(db: Db, owner: Owner): Promise<FactRow[]> {
  return factsOf(db, owner).selectAll().orderBy("key").execute();
}

export async function countFacts(db: Db, owner: Owner): Promise<number> {
  const { count } = await factsOf(db, owner)
    .select(sql<number>`count(*)`.as("count"))
    .executeTakeFirstOrThrow();
  return count;
}

/** Returns the newest facts that fit into `most.bytes`. Values are cut to `most.characters`. */
export async function newestFacts(
  db: Db,
  { agentId, endUserId }: Owner,
  most: { bytes: number; characters: number },
): Promise<(Fact & { isCut: boolean })[]> {
  const { rows } = await sql<Fact & { isCut: boolean }>`
    select key, value, is_cut as "isCut" from (
      select key, value, is_cut,
        sum(octet_length(key) + octet_length(value) + 8) over (order by updated_at desc, key) as bytes
      from (
        select key, updated_at, left(value, ${most.characters}) as value,
          char_length(value) > ${most.characters} as is_cut
        from agent_memories where agent_id = ${agentId} and end_user_id = ${endUserId}) as facts) as up_to
    where bytes <= ${most.bytes} order by key`.execute(db);
  return rows;
}

/** Returns facts that contain at least one of the words. Facts with the most matches come first, then the newest. */
export function searchFacts(db: Db, owner: Owner, words: readonly string[], limit: number): Promise<Fact[]> {
  const patterns = sql.val(words.map((word) => `%${word}%`));
  const text = sql`key || ' ' || value`;
  return factsOf(db, owner)
    .select(["key", "value"])
    .where(sql<boolean>`${text} ilike any(${patterns}::text[])`)
    .orderBy(sql`(select count(*) from unnest(${patterns}::text[]) as p where ${text} ilike p)`, "desc")
    .orderBy("updated_at", "desc")
    .orderBy("key")
    .limit(limit)
    .execute();
}
