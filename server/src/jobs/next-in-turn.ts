/** Applies the order of `FairQueue` (lib) to a queue that is a table. The payers of workspaces take turns. */
import { type Expression, sql } from "kysely";
import type { Db } from "#schema.ts";

interface Waiting {
  id: string;
  workspace_id: string;
  created_at: Date;
}

export interface QueueRows {
  waiting: Expression<Waiting>;
  running: Expression<{ workspace_id: string }>;
}

export interface NextEntry {
  id: string;
  payerId: string;
}

export interface TurnOptions {
  /** `RecentOwners.list`: payers whose work ended within the last hour. */
  recent: readonly string[];
  /** Number of slots. A payer leaves one free while another payer's work runs, or ended within the last hour. */
  places: number | "unbounded";
}

/**
 * Returns the next row to run. The payer with the fewest running rows comes first. Among equals, a payer that is not in
 * `recent` comes first, then the others in the order of `recent`. Each payer's oldest row comes first.
 * The caller locks the queue, and checks that the row still waits before it takes it. Rows of suspended workspaces stay
 * in the queue.
 */
export async function nextInTurn(
  tx: Db,
  { waiting, running }: QueueRows,
  { recent, places }: TurnOptions,
): Promise<NextEntry | undefined> {
  const most = places === "unbounded" ? 1_000_000 : places;
  const { rows } = await sql<{ id: string; payer_id: string }>`
    with running as (
      select p.payer_id, count(*) as entries
      from ${running} as r
      join workspace_payers as p on p.workspace_id = r.workspace_id
      group by p.payer_id
    )
    select w.id, coalesce(p.payer_id, w.workspace_id) as payer_id
    from ${waiting} as w
    left join workspace_payers as p on p.workspace_id = w.workspace_id
    left join running on running.payer_id = p.payer_id
    left join workspaces as suspended on suspended.id = w.workspace_id
    where suspended.held_since is null and coalesce(running.entries, 0) < case
      when array_remove(${[...recent]}::text[], p.payer_id::text) <> '{}'
        or exists (select from running as other where other.payer_id <> p.payer_id)
      then greatest(1, ${most}::int - 1)
      else ${most}::int
    end
    order by coalesce(running.entries, 0),
      coalesce(array_position(${[...recent]}::text[], p.payer_id::text), 0),
      w.created_at, w.id
    limit 1`.execute(tx);
  const [next] = rows;
  return next && { id: next.id, payerId: next.payer_id };
}
