/** All SQL of the table request_minutes. */
import { type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { DeploymentStatus } from "../deployments/tables.ts";
import type { RequestMinutesTable } from "./tables.ts";

/** A minute of an environment or a function, as one process counted it. */
export interface CountedMinute {
  id: string;
  minute: Date;
  writer: string;
  requests: number;
  errors: number;
  latencies: Buffer;
  coldStarts: number;
  /** Latencies of wakes. */
  wakes: Buffer;
}

export type MinuteRow = Selectable<RequestMinutesTable>;

/**
 * Stores counted minutes. Replaces earlier rows of this process for the same minutes, and drops minutes of deleted
 * environments.
 */
export async function writeMinutes(db: Db, rows: readonly CountedMinute[]): Promise<void> {
  if (rows.length === 0) return;
  await sql`
    insert into request_minutes (environment_id, minute, writer, requests, errors, latencies)
    select seen.* from unnest(
      ${sql.val(rows.map((row) => row.id))}::uuid[],
      ${sql.val(rows.map((row) => row.minute))}::timestamptz[],
      ${sql.val(rows.map((row) => row.writer))}::uuid[],
      ${sql.val(rows.map((row) => row.requests))}::int[],
      ${sql.val(rows.map((row) => row.errors))}::int[],
      ${sql.val(rows.map((row) => row.latencies))}::bytea[]
    ) as seen (environment_id, minute, writer, requests, errors, latencies)
    join environments on environments.id = seen.environment_id
    on conflict (environment_id, minute, writer) do update
    set requests = excluded.requests, errors = excluded.errors, latencies = excluded.latencies`.execute(db);
}

/** Lists minutes from the given one on, oldest first. The caller has checked access to the environment. */
export function readMinutes(db: Db, environmentId: string, from: Date): Promise<MinuteRow[]> {
  return db
    .selectFrom("request_minutes")
    .selectAll()
    .where("environment_id", "=", environmentId)
    .where("minute", ">=", from)
    .orderBy("minute")
    .execute();
}

export async function forgetMinutesBefore(db: Db, before: Date): Promise<void> {
  await db.deleteFrom("request_minutes").where("minute", "<", before).execute();
}

/** Returns the status of the last deployment that ended; undefined if there is none. */
export async function findLastOutcome(db: Db, environmentId: string): Promise<DeploymentStatus | undefined> {
  const row = await db
    .selectFrom("deployments")
    .select("status")
    .where("environment_id", "=", environmentId)
    .where("finished_at", "is not", null)
    .orderBy("number", "desc")
    .limit(1)
    .executeTakeFirst();
  return row?.status;
}
