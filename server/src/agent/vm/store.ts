/** All SQL of sessions' machines. A session's owner was asked for by whoever comes here. */
import { type Selectable, sql } from "kysely";
import type { Db } from "#db/db.ts";
import type { AgentMachinesTable } from "./tables.ts";

export type MachineRow = Selectable<AgentMachinesTable>;

const anyOf = (values: readonly string[]) => sql<string>`any(${sql.val([...values])}::text[])`;

export function findMachine(db: Db, sessionId: string): Promise<MachineRow | undefined> {
  return db.selectFrom("agent_machines").selectAll().where("session_id", "=", sessionId).executeTakeFirst();
}

// ---- the end

/** Nobody makes a machine for one of these until this transaction ends. */
export async function lockSessions(tx: Db, sessionIds: readonly string[]): Promise<void> {
  await tx
    .selectFrom("agent_sessions")
    .select("id")
    .where("id", "=", anyOf(sessionIds))
    .orderBy("id")
    .forUpdate()
    .execute();
}

/** Their sessions, of those that have one; it ends from here on. */
export async function markEnding(tx: Db, sessionIds: readonly string[]): Promise<string[]> {
  const rows = await tx
    .updateTable("agent_machines")
    .set({ state: "ending", lost_in: null })
    .where("session_id", "=", anyOf(sessionIds))
    .where("state", "<>", "ending")
    .returning("session_id")
    .execute();
  return rows.map(({ session_id }) => session_id);
}

/** Of sessions that ended, or are not there any more, and whose machine may be. */
export async function findLeft(db: Db, limit: number): Promise<string[]> {
  const rows = await db
    .selectFrom("agent_machines as m")
    .select("m.session_id")
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom("agent_sessions as s")
            .select("s.id")
            .whereRef("s.id", "=", "m.session_id")
            .where("s.ended_at", "is", null),
        ),
      ),
    )
    .limit(limit)
    .execute();
  return rows.map(({ session_id }) => session_id);
}

export async function deleteMachine(
  db: Db,
  row: Pick<MachineRow, "session_id" | "sandbox_id">,
): Promise<void> {
  await db
    .deleteFrom("agent_machines")
    .where("session_id", "=", row.session_id)
    .where("sandbox_id", "=", row.sandbox_id)
    .execute();
}
