/** Sums over runs and steps. The tables belong to `runs/`, and this file only reads the tables. */
import { sql } from "kysely";
import type { Db } from "#schema.ts";

export interface RunSums {
  runs: number;
  completed: number;
  failed: number;
  input_tokens: number;
  output_tokens: number;
  cached_input_tokens: number;
  active_ms: number;
}

const sums = sql`count(*) as runs,
  count(*) filter (where status = 'completed') as completed,
  count(*) filter (where status = 'failed') as failed,
  coalesce(sum(input_tokens), 0)::bigint as input_tokens,
  coalesce(sum(output_tokens), 0)::bigint as output_tokens,
  coalesce(sum(cached_input_tokens), 0)::bigint as cached_input_tokens,
  coalesce(sum(active_ms), 0)::bigint as active_ms`;

export async function sumByEndUser(
  db: Db,
  agentId: string,
  from: Date,
  limit: number,
): Promise<(RunSums & { end_user_id: string | null })[]> {
  const { rows } = await sql<RunSums & { end_user_id: string | null }>`
    select end_user_id, ${sums} from agent_runs
    where agent_id = ${agentId} and created_at >= ${from}
    group by end_user_id
    order by sum(input_tokens + output_tokens) desc, end_user_id limit ${limit}`.execute(db);
  return rows;
}

export async function sumByDay(db: Db, agentId: string, from: Date): Promise<(RunSums & { day: string })[]> {
  const { rows } = await sql<RunSums & { day: string }>`
    select to_char(created_at at time zone 'UTC', 'YYYY-MM-DD') as day, ${sums} from agent_runs
    where agent_id = ${agentId} and created_at >= ${from}
    group by day order by day`.execute(db);
  return rows;
}

export async function sumByModel(
  db: Db,
  agentId: string,
  from: Date,
): Promise<
  { model: string; calls: number; input_tokens: number; output_tokens: number; cached_input_tokens: number }[]
> {
  return db
    .selectFrom("agent_steps")
    .select((eb) => [
      "model",
      eb.fn.countAll<number>().as("calls"),
      sql<number>`sum(input_tokens)::bigint`.as("input_tokens"),
      sql<number>`sum(output_tokens)::bigint`.as("output_tokens"),
      sql<number>`sum(cached_input_tokens)::bigint`.as("cached_input_tokens"),
    ])
    .where("agent_id", "=", agentId)
    .where("finished_at", ">=", from)
    .groupBy("model")
    .orderBy("model")
    .execute();
}
