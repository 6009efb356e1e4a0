/**
 * Inserts a run. A single statement checks the limits and inserts the session, its messages, the run and the first
 * event. If this process has a free slot, the statement assigns the run to this process.
 */
import { type Insertable, type RawBuilder, sql } from "kysely";
import type { Db } from "#schema.ts";
import {
  lockedCounts,
  insertMessages,
  type NewSession,
  insertSession,
  useSession,
} from "#agent/sessions/store.ts";
import type { NewMessages } from "#agent/sessions/new-messages.ts";
import type { RunRow } from "../store.ts";
import type { AgentRunsTable } from "../tables.ts";

export interface NewRun {
  run: Pick<
    RunRow,
    | "id"
    | "workspace_id"
    | "agent_id"
    | "version"
    | "end_user_id"
    | "trigger_type"
    | "trigger_id"
    | "traceparent"
    | "created_at"
  >;
  session: { new: NewSession } | { id: string };
  words: NewMessages;
  /** Maximum numbers of live sessions and of runs in flight in the workspace. The new session and the new run count. */
  limits: { sessions: number; inFlight: number };
  /**
   * Process that executes the run, if the workspace has fewer than `maxPerWorkspace` runs in that process. Otherwise
   * the run waits for any process.
   */
  executor: { processId: string; maxPerWorkspace: number };
}

/** Result of an insert. `full`: the workspace reached a limit. */
export type InsertedRun =
  | { status: "full"; liveSessions: number }
  | { status: "queued" }
  | { status: "running"; row: RunRow };

export async function insertRun(
  db: Db,
  { run, session, words, limits, executor }: NewRun,
): Promise<InsertedRun> {
  const isNew = "new" in session;
  const isAllowed = sql`counts.in_flight < ${limits.inFlight}`;
  const sessionPart = isNew
    ? insertSession(session.new, words, sql`${isAllowed} and counts.live_sessions < ${limits.sessions}`)
    : useSession({ id: session.id, version: run.version, at: run.created_at }, words, isAllowed);
  const row = {
    ...run,
    session_id: isNew ? session.new.id : session.id,
    session_created: isNew,
    last_event_id: 1,
    process_id: executor.processId,
  } satisfies Partial<Insertable<AgentRunsTable>>;
  const names = Object.keys(row).map((name) => sql.ref(name));
  const { rows } = await sql<{ live_sessions: number; status: RunRow["status"] | null }>`
    with ${lockedCounts(run.workspace_id, executor.processId)}, ${sessionPart},
    run as (
      insert into agent_runs (${sql.join(names)}, status, attempts, started_at)
      select ${sql.join(Object.values(row))}, ${ifAcquired(executor, sql`'running'`, sql`'queued'`)},
        ${ifAcquired(executor, sql`1`, sql`0`)}, ${ifAcquired(executor, sql`${run.created_at}::timestamptz`, sql`null`)}
      from session, counts returning id, status),
    ${insertMessages(words)},
    events as (
      insert into agent_events (run_id, seq, type, at, data)
      select id, 1, 'run.queued', ${run.created_at}, '{}' from run)
    select live_sessions, status from counts left join run on true`.execute(db);
  const { live_sessions: liveSessions, status } = rows[0]!;
  if (status === null) return { status: "full", liveSessions };
  return status === "running"
    ? { status, row: { ...firstAttempt, ...row, started_at: run.created_at } }
    : { status: "queued" };
}

const ifAcquired = (
  { maxPerWorkspace }: NewRun["executor"],
  yes: RawBuilder<unknown>,
  no: RawBuilder<unknown>,
) => sql`case when counts.here < ${maxPerWorkspace} then ${yes} else ${no} end`;

/** Values of the column defaults and of the run's first attempt. */
const firstAttempt = {
  status: "running",
  error_code: null,
  error_message: null,
  finish_reason: null,
  output: null,
  output_expires_at: null,
  expired: false,
  steps: 0,
  input_tokens: 0,
  output_tokens: 0,
  cached_input_tokens: 0,
  reasoning_tokens: 0,
  active_ms: 0,
  attempts: 1,
  resumed: 0,
  resumes: 0,
  retry_at: null,
  model_waits: 0,
  waits_turn: false,
  finished_at: null,
} as const;
