/**
 * Turns of a busy session. The run of a trigger is stored as a row with its input, outside the conversation. After the
 * runs before it have ended, one transaction adds the input to the conversation and queues the run. A run that gets no
 * turn within a day fails.
 */
import { sql } from "kysely";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { DomainError } from "#lib/errors.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import type { MoveDeadlines } from "#machines/suspension/suspension.ts";
import type { Message } from "#agent/models/messages.ts";
import { lockForInvoke } from "#agent/sessions/sessions.ts";
import { lockCounts } from "#agent/sessions/store.ts";
import { fitsInSession, toNewMessages, appendMessages } from "#agent/sessions/new-messages.ts";
import { sessionParking } from "#agent/vm/errors.ts";
import { requireNotParking } from "#agent/vm/view.ts";
import type { NewRun } from "../api/insert-run.ts";
import { endFromOutside } from "../journal/end-run.ts";
import { sessionQueueFull } from "../api/run-errors.ts";
import { countInFlight, findActive, lockWholeRun } from "../store.ts";

/**
 * Maximum numbers of waiting runs. An input has up to 64 KiB, so the waiting runs of a workspace take at most 64 MiB.
 */
const waitingMax = { ofSession: 100, ofWorkspace: 1_000 };
const waitMaxMs = 24 * 3_600_000;
const waitedTooLong = {
  code: "limit_time",
  message: "The run waited a day for its turn in the session.",
  cure: "Send the delivery again.",
} as const;
const noRoom = {
  code: "limit_tokens",
  message: "The session is full.",
  cure: "End the session. The next delivery starts a new one.",
} as const;
const startedAtOnce = 200;
/**
 * Maximum number of runs of one workspace in a batch. The first run of each workspace comes first, so that blocked runs
 * do not delay other workspaces.
 */
const ofOneAtOnce = 20;

export interface Turn {
  run: NewRun["run"];
  sessionId: string;
  message: Message;
  inFlightMax: number;
  /** Maximum number of waiting runs in the session, if lower than the general maximum. */
  waitingMax?: number | undefined;
}

/**
 * Stores a run that waits for its turn. The caller holds the locks on the workspace's counts and on the session's row.
 */
export async function insertTurn(tx: Db, turn: Turn): Promise<void> {
  const { run, sessionId, message, inFlightMax } = turn;
  const ofSession = Math.min(turn.waitingMax ?? waitingMax.ofSession, waitingMax.ofSession);
  const { rows } = await sql<{ of_session: number; of_workspace: number }>`
    select count(*) filter (where session_id = ${sessionId}) as of_session, count(*) as of_workspace
    from agent_turns where workspace_id = ${run.workspace_id}`.execute(tx);
  const { of_session, of_workspace } = rows[0]!;
  if (of_session >= ofSession) throw sessionQueueFull(ofSession);
  if (of_workspace >= waitingMax.ofWorkspace) throw sessionQueueFull(waitingMax.ofWorkspace);
  const row = {
    ...run,
    session_id: sessionId,
    session_created: false,
    last_event_id: 1,
    status: "queued" as const,
    waits_turn: true,
  };
  const [words] = toNewMessages(run.id, [{ kind: "input", message }]);
  await tx.insertInto("agent_runs").values(row).execute();
  await sql`
    with event as (
      insert into agent_events (run_id, seq, type, at, data)
      values (${run.id}, 1, 'run.queued', ${run.created_at}, '{}'))
    insert into agent_turns (run_id, session_id, workspace_id, message, in_flight_max, expires_at)
    values (${run.id}, ${sessionId}, ${run.workspace_id}, ${words!.text}::json, ${inFlightMax},
      ${new Date(run.created_at.getTime() + waitMaxMs)})`.execute(tx);
}

type Needs = Pick<App, "db" | "log" | "clock">;

/** Starts runs whose turn has come. Returns the started runs, the expired runs, and whether other runs still wait. */
export async function startTurns(
  { db, log, clock }: Needs,
  held: readonly string[],
): Promise<{ started: string[]; ended: string[]; areLeft: boolean }> {
  const now = clock.now();
  const due = await findDue(db, held, now);
  const started: string[] = [];
  const ended: string[] = [];
  for (const turn of due) {
    try {
      const outcome = await transaction(db, (tx) => startTurn(tx, turn, now));
      if (outcome === "started") started.push(turn.run_id);
      if (outcome === "ended") ended.push(turn.run_id);
    } catch (error) {
      // If the session's machine is being parked, the run cannot start yet. The next sweep retries.
      if (error instanceof DomainError && error.code === sessionParking.code) continue;
      log.error({ error, run: turn.run_id }, "starting a waiting run failed");
    }
  }
  if (started.length > 0) await passKillPoint("agent.turn.committed");
  const { rows } = await sql`select from agent_turns limit 1`.execute(db);
  return { started, ended, areLeft: rows.length > 0 };
}

interface DueTurn {
  run_id: string;
  agent_id: string;
  session_id: string;
  workspace_id: string;
  message: Message;
  in_flight_max: number;
  expires_at: Date;
}

/** Selects the first run of each session without an active run, and runs whose wait expired. */
async function findDue(db: Db, held: readonly string[], now: Date): Promise<DueTurn[]> {
  const { rows } = await sql<DueTurn>`
    with first as (
      select distinct on (session_id) * from agent_turns order by session_id, position
    ), due as (
      select t.*, r.agent_id, row_number() over (partition by t.workspace_id order by t.position) as place
      from first as t join agent_runs as r on r.id = t.run_id join agents as a on a.id = r.agent_id
      where t.workspace_id <> all(${sql.val([...held])}::uuid[]) and not a.paused and a.archived_at is null
        and not exists (select from agent_pauses as p where p.workspace_id = t.workspace_id)
        and not exists (select from agent_runs as o where o.session_id = t.session_id
          and o.status in ('queued', 'running', 'pending_approval') and not o.waits_turn)
      union all
      select t.*, r.agent_id, 1 from agent_turns as t join agent_runs as r on r.id = t.run_id
      where t.expires_at <= ${now} and t.workspace_id <> all(${sql.val([...held])}::uuid[])
    )
    select run_id, agent_id, session_id, workspace_id, message, in_flight_max, expires_at
    from (select distinct on (position) * from due where place <= ${ofOneAtOnce} order by position, place) as each
    order by place, position limit ${startedAtOnce}`.execute(db);
  return rows;
}

/** Moves the waiting deadlines, because the time of a suspension does not count. */
export const moveTurnDeadlines: MoveDeadlines = async (tx, { workspaceId, ms }) => {
  await sql`update agent_turns set expires_at = expires_at + make_interval(secs => ${ms / 1000})
    where workspace_id = ${workspaceId}`.execute(tx);
};

async function startTurn(tx: Db, turn: DueTurn, now: Date): Promise<"started" | "ended" | undefined> {
  const { run_id: id, agent_id: agentId, session_id: sessionId } = turn;
  await lockCounts(tx, turn.workspace_id);
  // The run is locked first, as in the transaction of a step.
  const run = await lockWholeRun(tx, id);
  if (!run?.waits_turn || run.status !== "queued") return undefined;
  if (turn.expires_at <= now) {
    await endFromOutside(tx, id, waitedTooLong, now);
    return "ended";
  }
  const session = await lockForInvoke(tx, agentId, {
    id: sessionId,
    endUserId: undefined,
    hasHistory: false,
  });
  const active = await findActive(tx, [sessionId]);
  if (active.some((other) => !other.waits_turn)) return undefined;
  await requireNotParking(tx, sessionId);
  if ((await countInFlight(tx, turn.workspace_id)) >= turn.in_flight_max) return undefined;
  const words = toNewMessages(id, [{ kind: "input", message: turn.message }]);
  if (!fitsInSession(words, session.bytes)) {
    await endFromOutside(tx, id, noRoom, now);
    return "ended";
  }
  await sql`
    with run as (
      update agent_runs set waits_turn = false where id = ${id} returning id, session_id),
    turn as (delete from agent_turns using run where agent_turns.run_id = run.id),
    ${appendMessages(words)}
    select from run`.execute(tx);
  await passKillPoint("agent.turn.commits");
  return "started";
}
