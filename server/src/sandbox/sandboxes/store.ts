/** All SQL of the sandboxes table. The workspaces a caller can reach are an argument of every read. */
import { type Kysely, type Selectable, sql, type Transaction } from "kysely";
import type { SandboxTier } from "#accounts/roles.ts";
import type { ProcessDefaults } from "#builds/tables.ts";
import type { Database, Db } from "#schema.ts";
import type { Status } from "./states.ts";
import type { SandboxesTable, TerminationReason } from "./tables.ts";

type Queryable = Kysely<Database> | Transaction<Database>;

/** A sandbox, its current machine, and the limits of its owner. */
export type SandboxRow = Selectable<SandboxesTable> & {
  machine_id: string | null;
  /** Tier of the workspace. */
  sandbox_tier: SandboxTier;
};

const machineId = sql<string | null>`(
  select m.id from machines m
  where m.owner_kind = 'sandbox' and m.owner_id = sandboxes.id and m.desired <> 'removed'
)`.as("machine_id");

const sandboxTier = sql<SandboxTier>`(
  select w.sandbox_tier from workspaces w where w.id = sandboxes.workspace_id
)`.as("sandbox_tier");

export function findSandbox(
  db: Queryable,
  id: string,
  workspaceIds: readonly string[],
): Promise<SandboxRow | undefined> {
  return db
    .selectFrom("sandboxes")
    .selectAll()
    .select([machineId, sandboxTier])
    .where("id", "=", id)
    .where("workspace_id", "=", sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`)
    .where("reserved", "=", false)
    .executeTakeFirst();
}

/** Includes terminated sandboxes. */
export function findWorkspaces(
  db: Queryable,
  ids: readonly string[],
): Promise<{ id: string; workspace_id: string }[]> {
  return db
    .selectFrom("sandboxes")
    .select(["id", "workspace_id"])
    .where("id", "=", sql<string>`any(${sql.val([...ids])}::text[])`)
    .execute();
}

export interface ListFilter {
  workspaceIds: readonly string[];
  /** Statuses to include. All if absent. */
  statuses?: readonly Status[] | undefined;
  metadata?: Record<string, string> | undefined;
  template?: string | undefined;
  createdAfter?: string | undefined;
  createdBefore?: string | undefined;
  order: "newest" | "oldest";
  /** Last row of the previous page. */
  from?: { createdAt: string; id: string } | undefined;
  limit: number;
}

/** Lists by creation time. `created_at_text` keeps the microseconds for the cursor, which a Date drops. */
export function listSandboxes(
  db: Queryable,
  filter: ListFilter,
): Promise<(SandboxRow & { created_at_text: string })[]> {
  let query = db
    .selectFrom("sandboxes")
    .selectAll()
    .select([machineId, sandboxTier, sql<string>`created_at::text`.as("created_at_text")])
    .where("workspace_id", "=", sql<string>`any(${sql.val([...filter.workspaceIds])}::uuid[])`)
    .where("reserved", "=", false)
    .orderBy("created_at", filter.order === "newest" ? "desc" : "asc")
    .orderBy("id", filter.order === "newest" ? "desc" : "asc")
    .limit(filter.limit);
  if (filter.statuses) query = query.where("status", "in", [...filter.statuses]);
  if (filter.template !== undefined) {
    const { template } = filter;
    query = query.where((eb) => eb.or([eb("template", "=", template), eb("template_id", "=", template)]));
  }
  if (filter.createdAfter !== undefined)
    query = query.where(sql<boolean>`created_at >= ${filter.createdAfter}::timestamptz`);
  if (filter.createdBefore !== undefined)
    query = query.where(sql<boolean>`created_at < ${filter.createdBefore}::timestamptz`);
  if (filter.metadata && Object.keys(filter.metadata).length > 0) {
    query = query.where(sql<boolean>`metadata @> ${JSON.stringify(filter.metadata)}::jsonb`);
  }
  if (filter.from) {
    const { createdAt, id } = filter.from;
    const follows = filter.order === "newest" ? sql`<` : sql`>`;
    query = query.where(sql<boolean>`(created_at, id) ${follows} (${createdAt}::timestamptz, ${id})`);
  }
  return query.execute();
}

export type NewSandbox = Pick<
  Selectable<SandboxesTable>,
  | "id"
  | "workspace_id"
  | "template"
  | "template_id"
  | "start_command_id"
  | "size"
  | "cpu"
  | "memory_mb"
  | "network"
  | "region"
  | "volume_id"
  | "on_timeout"
  | "auto_resume"
  | "timeout_seconds"
  | "expires_at"
  | "preview_token_sealed"
  | "allow_domains"
  | "created_at"
> & {
  metadata: Record<string, string>;
  forked_from?: string | null;
  snapshot_id?: string | null;
  substituted?: string | null;
  process_defaults: ProcessDefaults | null;
  reserved?: boolean;
};

export function insertSandbox(
  tx: Transaction<Database>,
  sandbox: NewSandbox,
): Promise<Selectable<SandboxesTable>> {
  return tx
    .insertInto("sandboxes")
    .values({
      ...sandbox,
      metadata: JSON.stringify(sandbox.metadata),
      process_defaults: sandbox.process_defaults && JSON.stringify(sandbox.process_defaults),
      status: "running",
      transition: null,
      termination_reason: null,
      running_since: sandbox.created_at,
      terminated_at: null,
    })
    .returningAll()
    .executeTakeFirstOrThrow();
}

/**
 * Turns a clone's reservation into a sandbox, whose lifetime begins now. Undefined if the reservation was deleted.
 */
export function activateReserved(
  tx: Transaction<Database>,
  id: string,
  at: Date,
): Promise<Selectable<SandboxesTable> | undefined> {
  return tx
    .updateTable("sandboxes")
    .set({
      reserved: false,
      created_at: at,
      running_since: at,
      expires_at: sql<Date>`${at}::timestamptz + make_interval(secs => timeout_seconds)`,
    })
    .where("id", "=", id)
    .where("reserved", "=", true)
    .returningAll()
    .executeTakeFirst();
}

/** Deletes reservations only; a row that callers have seen stays. */
export async function deleteReserved(db: Queryable, ids: readonly string[]): Promise<void> {
  await db.deleteFrom("sandboxes").where("id", "in", ids).where("reserved", "=", true).execute();
}

/**
 * Counts running and paused sandboxes, and blocks creates in the same workspace until this transaction ends.
 */
export async function lockAndCountLive(tx: Transaction<Database>, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 1))`.execute(tx);
  return countLiveRows(tx, workspaceId);
}

/** Lists the running and paused sandboxes of a workspace, newest first. */
export async function listLiveRows(db: Queryable, workspaceId: string, limit: number) {
  const rows = await db
    .selectFrom("sandboxes")
    .select(["id", "status", "template", "size", "region", "created_at", "expires_at"])
    .where("workspace_id", "=", workspaceId)
    .where("status", "in", ["running", "paused"])
    .where("reserved", "=", false)
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .limit(limit)
    .execute();
  return rows as ((typeof rows)[number] & { status: "running" | "paused" })[];
}

export function findStates(
  db: Queryable,
  ids: readonly string[],
): Promise<Pick<Selectable<SandboxesTable>, "id" | "status" | "transition" | "termination_reason">[]> {
  return db
    .selectFrom("sandboxes")
    .select(["id", "status", "transition", "termination_reason"])
    .where("id", "=", sql<string>`any(${sql.val([...ids])}::text[])`)
    .execute();
}

export async function countLiveRows(db: Queryable, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("sandboxes")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .where("status", "in", ["running", "paused"])
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Returns SQL for the seconds that the sandbox has run until a given time. */
const lifetimeUntil = (until: Date) =>
  sql<number>`running_seconds + coalesce(greatest(0, extract(epoch from ${until}::timestamptz - running_since)), 0)`;

/** Terminates a row. Undefined if the row was terminated before; only one of two concurrent calls succeeds. */
export async function terminateRow(
  tx: Queryable,
  id: string,
  ending: {
    reason: TerminationReason;
    at: Date;
    cpuSeconds: number;
    expiredBy?: Date;
    snapshotExpiredBy?: Date;
  },
): Promise<Selectable<SandboxesTable> | undefined> {
  let update = tx
    .updateTable("sandboxes")
    .set({
      status: "terminated",
      transition: null,
      termination_reason: ending.reason,
      terminated_at: ending.at,
      cpu_seconds: sql<number>`cpu_seconds + ${ending.cpuSeconds}`,
      running_seconds: lifetimeUntil(ending.at),
      running_since: null,
    })
    .where("id", "=", id)
    .where("status", "<>", "terminated");
  // A keep-alive may have happened after the read.
  if (ending.expiredBy) {
    update = update.where("expires_at", "<=", ending.expiredBy).where("status", "=", "running");
  }
  // A resume may have happened after the read.
  if (ending.snapshotExpiredBy) {
    update = update.where("status", "=", "paused").where("transition", "is", null);
  }
  return update.returningAll().executeTakeFirst();
}

export async function forgetStartCommand(db: Queryable, id: string): Promise<void> {
  await db.updateTable("sandboxes").set({ start_command_id: null }).where("id", "=", id).execute();
}

export function extendRow(
  db: Queryable,
  id: string,
  timeoutSeconds: number,
  expiresAt: Date,
): Promise<Selectable<SandboxesTable> | undefined> {
  return db
    .updateTable("sandboxes")
    .set({ timeout_seconds: timeoutSeconds, expires_at: expiresAt })
    .where("id", "=", id)
    .where("status", "=", "running")
    .returningAll()
    .executeTakeFirst();
}

/** Finds the sandbox of a machine, also of an ended machine whose row exists. */
export function findSandboxOfMachine(
  db: Queryable,
  machine: string,
): Promise<{ id: string; workspace_id: string } | undefined> {
  return db
    .selectFrom("machines")
    .innerJoin("sandboxes", "sandboxes.id", "machines.owner_id")
    .select(["sandboxes.id", "sandboxes.workspace_id"])
    .where("machines.id", "=", machine)
    .where("machines.owner_kind", "=", "sandbox")
    .where("sandboxes.reserved", "=", false)
    .executeTakeFirst();
}

/** Sets the hosts of a running or paused restricted sandbox. Null means the default allowlist. */
export async function setAllowDomains(
  tx: Queryable,
  id: string,
  workspaceIds: readonly string[],
  domains: readonly string[] | null,
): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable("sandboxes")
    .set({ allow_domains: domains === null ? null : [...domains] })
    .where("id", "=", id)
    .where("workspace_id", "=", sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`)
    .where("reserved", "=", false)
    .where("status", "<>", "terminated")
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** Extends lifetimes by the last requested length of each sandbox. A sandbox that was just extended does not change. */
export async function extendRows(db: Queryable, ids: readonly string[], now: Date): Promise<void> {
  const whole = sql<Date>`${now}::timestamptz + make_interval(secs => timeout_seconds)`;
  await db
    .updateTable("sandboxes")
    .set({ expires_at: whole })
    .where("id", "=", sql<string>`any(${sql.val([...ids])}::text[])`)
    .where("status", "=", "running")
    .where("expires_at", "<", sql<Date>`${whole} - interval '1 minute'`)
    .execute();
}

/** Begins a move if the sandbox is in its source state and in no other move. */
export async function beginMove(
  tx: Queryable,
  id: string,
  move: { transition: "pausing" | "resuming"; from: Status; expiredBy?: Date | undefined },
): Promise<boolean> {
  let update = tx
    .updateTable("sandboxes")
    .set({ transition: move.transition })
    .where("id", "=", id)
    .where("status", "=", move.from)
    .where("transition", "is", null);
  if (move.expiredBy) update = update.where("expires_at", "<=", move.expiredBy);
  return (await update.executeTakeFirst()).numUpdatedRows > 0n;
}

/** Ends a failed move. False if the move had ended before. */
export async function endMove(
  db: Queryable,
  id: string,
  transition: "pausing" | "resuming",
): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable("sandboxes")
    .set({ transition: null })
    .where("id", "=", id)
    .where("transition", "=", transition)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** Ends moves that rows record and that are not in progress. */
export async function endMoves(db: Queryable, { except }: { except: readonly string[] }): Promise<void> {
  await db
    .updateTable("sandboxes")
    .set({ transition: null })
    .where("transition", "is not", null)
    .where("id", "<>", sql<string>`all(${sql.val([...except])}::text[])`)
    .execute();
}

export function pauseRow(
  tx: Queryable,
  id: string,
  how: { at: Date; cpuSeconds: number },
): Promise<Selectable<SandboxesTable> | undefined> {
  return tx
    .updateTable("sandboxes")
    .set({
      status: "paused",
      transition: null,
      cpu_seconds: sql<number>`cpu_seconds + ${how.cpuSeconds}`,
      running_seconds: lifetimeUntil(how.at),
      running_since: null,
    })
    .where("id", "=", id)
    .where("status", "=", "running")
    .where("transition", "=", "pausing")
    .returningAll()
    .executeTakeFirst();
}

/** Restarts the lifetime with its last requested length. */
export function resumeRow(
  tx: Queryable,
  id: string,
  at: Date,
): Promise<Selectable<SandboxesTable> | undefined> {
  return tx
    .updateTable("sandboxes")
    .set({
      status: "running",
      transition: null,
      running_since: at,
      expires_at: sql<Date>`${at}::timestamptz + make_interval(secs => timeout_seconds)`,
    })
    .where("id", "=", id)
    .where("status", "=", "paused")
    .where("transition", "=", "resuming")
    .returningAll()
    .executeTakeFirst();
}

/**
 * Counts paused sandboxes and pauses in progress of the workspace, and blocks further pauses until this transaction
 * ends.
 */
export async function lockAndCountSnapshots(tx: Transaction<Database>, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 2))`.execute(tx);
  const { count } = await tx
    .selectFrom("sandboxes")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .where((eb) => eb.or([eb("status", "=", "paused"), eb("transition", "=", "pausing")]))
    .executeTakeFirstOrThrow();
  return Number(count);
}

export async function findTier(db: Queryable, workspaceId: string): Promise<SandboxTier> {
  const { sandbox_tier } = await db
    .selectFrom("workspaces")
    .select("sandbox_tier")
    .where("id", "=", workspaceId)
    .executeTakeFirstOrThrow();
  return sandbox_tier;
}

export async function isSuspended(db: Queryable, workspaceId: string): Promise<boolean> {
  const { suspended_at } = await db
    .selectFrom("workspaces")
    .select("suspended_at")
    .where("id", "=", workspaceId)
    .executeTakeFirstOrThrow();
  return suspended_at !== null;
}

/** Finds running sandboxes past their deadline without a move in progress. */
export function findExpired(
  db: Queryable,
  now: Date,
  onTimeout: "kill" | "pause",
): Promise<{ id: string; workspace_id: string; expires_at: Date; machine_id: string | null }[]> {
  return db
    .selectFrom("sandboxes")
    .select(["id", "workspace_id", "expires_at", machineId])
    .where("status", "=", "running")
    .where("on_timeout", "=", onTimeout)
    .where("expires_at", "<=", now)
    .where("workspace_id", "not in", (eb) =>
      eb.selectFrom("workspaces").select("id").where("held_since", "is not", null),
    )
    .where("transition", "is", null)
    .where("reserved", "=", false)
    .orderBy("expires_at")
    .limit(100)
    .execute();
}

/** Moves the deadlines of a workspace's running sandboxes and of its paused sandboxes' snapshots. */
export async function moveDeadlines(tx: Queryable, workspaceId: string, ms: number): Promise<void> {
  await tx
    .updateTable("sandboxes")
    .set({ expires_at: sql<Date>`expires_at + make_interval(secs => ${ms / 1000})` })
    .where("workspace_id", "=", workspaceId)
    .where("status", "=", "running")
    .execute();
  await tx
    .updateTable("snapshots")
    .set({ expires_at: sql<Date>`expires_at + make_interval(secs => ${ms / 1000})` })
    .where("owner_kind", "=", "sandbox")
    .where("owner_id", "in", (eb) =>
      eb
        .selectFrom("sandboxes")
        .select("id")
        .where("workspace_id", "=", workspaceId)
        .where("status", "=", "paused"),
    )
    .execute();
}

/** Finds paused sandboxes past their retention, without a resume in progress. */
export function findExpiredSnapshots(db: Queryable, now: Date): Promise<{ id: string }[]> {
  return db
    .selectFrom("sandboxes")
    .innerJoin("snapshots", (join) =>
      join.onRef("snapshots.owner_id", "=", "sandboxes.id").on("snapshots.owner_kind", "=", "sandbox"),
    )
    .select("sandboxes.id")
    .where("sandboxes.status", "=", "paused")
    .where("sandboxes.transition", "is", null)
    .where("sandboxes.workspace_id", "not in", (eb) =>
      eb.selectFrom("workspaces").select("id").where("held_since", "is not", null),
    )
    .where("snapshots.expires_at", "<=", now)
    .orderBy("snapshots.expires_at")
    .limit(100)
    .execute();
}

export async function deleteTerminatedBefore(db: Queryable, before: Date): Promise<void> {
  await db
    .deleteFrom("sandboxes")
    .where("status", "=", "terminated")
    .where("terminated_at", "<", before)
    .execute();
}

/** Reads a row without an access check, for events of machines and for signed URLs. */
export function findById(db: Queryable, id: string): Promise<SandboxRow | undefined> {
  return db
    .selectFrom("sandboxes")
    .selectAll()
    .select([machineId, sandboxTier])
    .where("id", "=", id)
    .executeTakeFirst();
}

/** Finds the sandbox that serves visitors. Undefined if there is no such sandbox, or its workspace is suspended. */
export function findVisited(db: Queryable, id: string): Promise<SandboxRow | undefined> {
  return db
    .selectFrom("sandboxes")
    .innerJoin("workspaces", "workspaces.id", "sandboxes.workspace_id")
    .selectAll("sandboxes")
    .select([machineId, "workspaces.sandbox_tier"])
    .where("sandboxes.id", "=", id)
    .where("sandboxes.reserved", "=", false)
    .where("workspaces.suspended_at", "is", null)
    .executeTakeFirst();
}

/**
 * Returns the allowlist of a restricted machine's sandbox: null for the default, undefined if there is no such sandbox.
 */
export async function findAllowDomains(db: Queryable, machine: string): Promise<string[] | null | undefined> {
  const row = await db
    .selectFrom("machines")
    .innerJoin("sandboxes", "sandboxes.id", "machines.owner_id")
    .select("sandboxes.allow_domains")
    .where("machines.id", "=", machine)
    .where("machines.owner_kind", "=", "sandbox")
    .where("machines.desired", "<>", "removed")
    .where("machines.network", "=", "restricted")
    .executeTakeFirst();
  return row?.allow_domains;
}

export async function removeLabel(
  tx: Db,
  workspaceId: string,
  name: string,
  values: readonly string[],
): Promise<void> {
  await tx
    .updateTable("sandboxes")
    .set({ metadata: sql`metadata - ${name}::text` })
    .where("workspace_id", "=", workspaceId)
    .where(sql`metadata ->> ${name}::text`, "=", sql`any(${sql.val([...values])}::text[])`)
    .execute();
}
