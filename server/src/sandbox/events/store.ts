/** All SQL of the events tables. The workspaces a caller can reach are an argument of the read. */
import { type Insertable, type Selectable, sql } from "kysely";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import type { EventName } from "./names.ts";
import type { SandboxEventsTable } from "./tables.ts";

export type EventRow = Selectable<SandboxEventsTable> & { position: number };

export async function insertEvent(
  tx: Db,
  event: Omit<Insertable<SandboxEventsTable>, "seq" | "position">,
): Promise<void> {
  await tx
    .insertInto("sandbox_events")
    .values({ ...event, position: null })
    .execute();
}

/**
 * Gives a position to every committed event that has no position yet. The lock on the counter's row is the mutex: after
 * waiting for it, the next statement sees all positions of the previous holder.
 */
export async function numberEvents(db: Db): Promise<void> {
  const unnumbered = await db
    .selectFrom("sandbox_events")
    .select("seq")
    .where("position", "is", null)
    .limit(1)
    .executeTakeFirst();
  if (!unnumbered) return;
  await transaction(db, async (tx) => {
    await tx.selectFrom("sandbox_event_counter").select("last").forUpdate().executeTakeFirstOrThrow();
    await sql`
      with unnumbered as (
        select seq, row_number() over (order by seq) as n from sandbox_events where position is null
      ), numbered as (
        update sandbox_events as e
        set position = (select last from sandbox_event_counter) + unnumbered.n
        from unnumbered where e.seq = unnumbered.seq
        returning 1
      )
      update sandbox_event_counter set last = last + (select count(*) from numbered)`.execute(tx);
  });
}

export async function listEvents(
  db: Db,
  workspaceIds: readonly string[],
  filter: {
    sandboxId?: string | undefined;
    events?: readonly EventName[] | undefined;
    before?: number | undefined;
    since?: number | undefined;
    limit: number;
  },
): Promise<EventRow[]> {
  let query = db
    .selectFrom("sandbox_events")
    .selectAll()
    .where("position", "is not", null)
    .where("workspace_id", "=", sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`)
    .orderBy("position", "desc")
    .limit(filter.limit);
  if (filter.sandboxId !== undefined) query = query.where("sandbox_id", "=", filter.sandboxId);
  if (filter.events !== undefined) query = query.where("event", "in", [...filter.events]);
  if (filter.before !== undefined) query = query.where("position", "<", filter.before);
  if (filter.since !== undefined) query = query.where("position", ">", filter.since);
  return (await query.execute()) as EventRow[];
}

export async function deleteEventsBefore(db: Db, before: Date): Promise<void> {
  await db.deleteFrom("sandbox_events").where("at", "<", before).execute();
}
