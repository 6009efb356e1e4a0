/** All SQL of the deployment tables. Every read for a caller takes the caller's workspaces as an argument. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Plan } from "#accounts/roles.ts";
import { transaction } from "#db/db.ts";
import type { Db, Transaction } from "#schema.ts";
import { type NextEntry, nextInTurn } from "#jobs/next-in-turn.ts";
import type { EnvironmentsTable } from "../environments/tables.ts";
import type { ProjectsTable } from "../projects/tables.ts";
import { interrupted, queued } from "../progress.ts";
import type { StepLogPiece } from "../step-log.ts";
import { type Step, type StepName, stepNames, stepPosition } from "./states.ts";
import type {
  DeploymentLogsTable,
  DeploymentProgress,
  DeploymentStatus,
  DeploymentsTable,
  RunRecord,
  TriggerActor,
} from "./tables.ts";

/** A deployment with the names of its project, environment and user, and the first label of its address. */
export type DeploymentRow = Selectable<DeploymentsTable> & {
  workspace_id: string;
  host_label: string;
  environment_name: string;
  project_name: string;
  /** Name of the user; null if `trigger_user_id` is null. */
  trigger_user_name: string | null;
  trigger_user_email: string | null;
};
export type DeploymentLogRow = Selectable<DeploymentLogsTable>;

const running: readonly DeploymentStatus[] = ["building", "deploying"];
/** Kinds of triggers that start from an existing image and need no build slot. */
const withImage = ["rollback", "restart"] as const;
const underWay: readonly DeploymentStatus[] = ["queued", ...running];

function deployments(db: Db) {
  return db
    .selectFrom("deployments")
    .innerJoin("projects", "projects.id", "deployments.project_id")
    .innerJoin("environments", "environments.id", "deployments.environment_id")
    .leftJoin("users", "users.id", "deployments.trigger_user_id")
    .selectAll("deployments")
    .select([
      "users.name as trigger_user_name",
      "users.email as trigger_user_email",
      "projects.workspace_id",
      "projects.name as project_name",
      "environments.host_label",
      "environments.name as environment_name",
    ]);
}

const anyOf = (ids: readonly string[]) => sql<string>`any(${sql.val([...ids])}::uuid[])`;

export function findDeployment(
  db: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<DeploymentRow | undefined> {
  return deployments(db)
    .where("deployments.id", "=", id)
    .where("projects.workspace_id", "=", anyOf(workspaceIds))
    .where("projects.deleted_at", "is", null)
    .where("environments.deleted_at", "is", null)
    .executeTakeFirst();
}

/** Lists the newest deployments of a workspace, across its projects. */
export function listRecentDeployments(db: Db, workspaceId: string, limit: number): Promise<DeploymentRow[]> {
  return deployments(db)
    .where("projects.workspace_id", "=", workspaceId)
    .where("projects.deleted_at", "is", null)
    .where("environments.deleted_at", "is", null)
    .orderBy("deployments.created_at", "desc")
    .orderBy("deployments.id", "desc")
    .limit(limit)
    .execute();
}

/** Returns a deployment of any workspace. Only the server's own work calls this function. */
export function findById(db: Db, id: string): Promise<DeploymentRow | undefined> {
  return deployments(db).where("deployments.id", "=", id).executeTakeFirst();
}

/** A deployment with its project and environment, as read when the deployment runs. */
export interface Subject {
  deployment: DeploymentRow;
  project: Selectable<ProjectsTable>;
  environment: Selectable<EnvironmentsTable>;
  plan: Plan;
}

/** Returns a deployment's subject; undefined if the deployment, its project or its environment is deleted. */
export async function findSubject(db: Db, id: string): Promise<Subject | undefined> {
  const deployment = await findById(db, id);
  if (!deployment) return undefined;
  const [project, environment, workspace] = await Promise.all([
    db
      .selectFrom("projects")
      .selectAll()
      .where("id", "=", deployment.project_id)
      .where("deleted_at", "is", null)
      .executeTakeFirst(),
    db
      .selectFrom("environments")
      .selectAll()
      .where("id", "=", deployment.environment_id)
      .where("deleted_at", "is", null)
      .executeTakeFirst(),
    db.selectFrom("workspaces").select("plan").where("id", "=", deployment.workspace_id).executeTakeFirst(),
  ]);
  return project && environment && workspace
    ? { deployment, project, environment, plan: workspace.plan }
    : undefined;
}

/** Returns the live deployment of an environment; undefined if there is none. */
export function findServed(db: Db, environmentId: string): Promise<DeploymentRow | undefined> {
  return deployments(db)
    .where("environments.id", "=", environmentId)
    .whereRef("deployments.id", "=", "environments.live_deployment_id")
    .executeTakeFirst();
}

export interface DeploymentFilter {
  environmentId?: string | undefined;
  status?: DeploymentStatus | undefined;
}

/** Lists the deployments of a project, newest first. The caller checks access to the project. */
export async function listDeployments(
  db: Db,
  projectId: string,
  { skip, limit, environmentId, status }: { skip: number; limit: number } & DeploymentFilter,
): Promise<{ items: DeploymentRow[]; total: number }> {
  const [items, { total }] = await Promise.all([
    deployments(db)
      .where("deployments.project_id", "=", projectId)
      .where("environments.deleted_at", "is", null)
      .$if(environmentId !== undefined, (of) => of.where("deployments.environment_id", "=", environmentId!))
      .$if(status !== undefined, (of) => of.where("deployments.status", "=", status!))
      .orderBy("deployments.created_at", "desc")
      .orderBy("deployments.id", "desc")
      .offset(skip)
      .limit(limit)
      .execute(),
    db
      .selectFrom("deployments")
      .innerJoin("environments", "environments.id", "deployments.environment_id")
      .select((eb) => eb.fn.countAll<number>().as("total"))
      .where("deployments.project_id", "=", projectId)
      .where("environments.deleted_at", "is", null)
      .$if(environmentId !== undefined, (of) => of.where("deployments.environment_id", "=", environmentId!))
      .$if(status !== undefined, (of) => of.where("deployments.status", "=", status!))
      .executeTakeFirstOrThrow(),
  ]);
  return { items, total };
}

export interface Tally {
  total: number;
  succeeded: number;
  failed: number;
  /** Average duration of successful deployments in milliseconds; null if there are none. */
  average_ms: number | null;
}

export function countOutcomes(db: Db, projectId: string, environmentId?: string): Promise<Tally> {
  const succeeded = sql`status in ('live', 'superseded')`;
  return db
    .selectFrom("deployments")
    .select((eb) => [
      eb.fn.countAll<number>().as("total"),
      sql<number>`count(*) filter (where ${succeeded})`.as("succeeded"),
      sql<number>`count(*) filter (where status = 'failed')`.as("failed"),
      sql<number | null>`(extract(epoch from avg(finished_at - started_at) filter (where ${succeeded}))
        * 1000)::float8`.as("average_ms"),
    ])
    .where("project_id", "=", projectId)
    .$if(environmentId !== undefined, (of) => of.where("environment_id", "=", environmentId!))
    .executeTakeFirstOrThrow();
}

/** Locks the project and returns its settings. Deployments get their numbers under this lock. */
export function lockProject(
  tx: Transaction,
  id: string,
): Promise<{ workspace_id: string; name: string; auto_deploy: boolean; is_suspended: boolean } | undefined> {
  return tx
    .selectFrom("projects")
    .innerJoin("workspaces", "workspaces.id", "projects.workspace_id")
    .select([
      "projects.workspace_id",
      "projects.name",
      "projects.auto_deploy",
      sql<boolean>`workspaces.suspended_at is not null`.as("is_suspended"),
    ])
    .where("projects.id", "=", id)
    .where("projects.deleted_at", "is", null)
    .forNoKeyUpdate("projects")
    .executeTakeFirst();
}

export function environmentsOfBranch(tx: Db, projectId: string, branch: string): Promise<{ id: string }[]> {
  return tx
    .selectFrom("environments")
    .select("id")
    .where("project_id", "=", projectId)
    .where("branch", "=", branch)
    .where("deleted_at", "is", null)
    .orderBy("created_at")
    .execute();
}

/** Locks the environment against deletion until the transaction ends. Returns false if there is no such environment. */
export async function lockEnvironment(tx: Transaction, id: string): Promise<boolean> {
  const row = await tx
    .selectFrom("environments")
    .select("id")
    .where("id", "=", id)
    .where("deleted_at", "is", null)
    .forShare()
    .executeTakeFirst();
  return row !== undefined;
}

/** Returns the environment's deployments that have not ended: at most one running and one queued. */
export function findUnderWay(
  db: Db,
  environmentId: string,
): Promise<Pick<DeploymentRow, "id" | "number" | "status">[]> {
  return db
    .selectFrom("deployments")
    .select(["id", "number", "status"])
    .where("environment_id", "=", environmentId)
    .where("status", "in", underWay)
    .orderBy("created_at")
    .execute();
}

export type NewDeployment = Omit<
  Insertable<DeploymentsTable>,
  "number" | "status" | "steps" | "trigger_actor" | "run" | "progress"
> & { run?: RunRecord | null; steps: Step[]; trigger_actor: TriggerActor };

/** Inserts a deployment. The caller holds the project's lock. */
export async function insertDeployment(
  tx: Transaction,
  { steps, run, trigger_actor, ...deployment }: NewDeployment,
): Promise<string> {
  const { id } = await tx
    .insertInto("deployments")
    .values((eb) => ({
      ...deployment,
      number: eb
        .selectFrom("deployments")
        .select(sql<number>`coalesce(max(number), 0) + 1`.as("next"))
        .where("project_id", "=", deployment.project_id),
      status: "queued",
      progress: JSON.stringify(queued),
      steps: JSON.stringify(steps),
      trigger_actor: JSON.stringify(trigger_actor),
      run: run ? JSON.stringify(run) : null,
    }))
    .returning("id")
    .executeTakeFirstOrThrow();
  return id;
}

/**
 * Returns the steps of an ended deployment. A step that never started becomes `skipped`, and a running step becomes
 * `cutOff`. A running scan becomes `skipped`, because a scan does not fail a deployment.
 */
function endedSteps(cutOff: "failed" | "skipped", at: Date) {
  return sql<string>`(
    select jsonb_agg(
      case step ->> 'status'
        when 'pending' then step || '{"status": "skipped"}'
        when 'running' then step || jsonb_build_object(
          'status', case when step ->> 'name' = 'scan' then 'skipped' else ${cutOff}::text end,
          'finished_at', ${at.toISOString()}::text)
        else step
      end order by place)
    from jsonb_array_elements(steps) with ordinality as each (step, place)
  )`;
}

/** Cancels a queued deployment. Returns false if the deployment has started or ended. */
export async function cancelQueued(tx: Db, id: string, reason: string | null, at: Date): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable("deployments")
    .set({ status: "cancelled", error: reason, finished_at: at, steps: endedSteps("skipped", at) })
    .where("id", "=", id)
    .where("status", "=", "queued")
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

const routeIndex = sql.lit(stepPosition("route"));

/** Requests the cancellation of a running deployment. Returns false once the switch of the address has begun. */
export async function requestCancel(tx: Db, id: string): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable("deployments")
    .set({ cancel_asked: true })
    .where("id", "=", id)
    .where("status", "in", running)
    .where(sql<boolean>`steps->${routeIndex}->>'status' = 'pending'`)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/**
 * Takes the next deployment: first one that a dead server of this host left, then the next in turn. Rollbacks and
 * restarts need no build slot. Returns undefined if none is queued, or if `atOnce` deployments build.
 */
export function takeNext(
  db: Db,
  host: { id: string; atOnce: number; executing: readonly string[]; recent: readonly string[] },
  now: Date,
): Promise<NextEntry | undefined> {
  return transaction(db, async (tx) => {
    await sql`select pg_advisory_xact_lock(hashtextextended(${host.id}, 11))`.execute(tx);
    const mine = tx
      .selectFrom("deployments")
      .innerJoin("projects", "projects.id", "deployments.project_id")
      .select(["deployments.id", "projects.workspace_id", "deployments.created_at"])
      .where("status", "in", running)
      .where("host_id", "=", host.id)
      // A deployment that a suspension interrupted holds no build slot.
      .where("projects.workspace_id", "not in", (eb) =>
        eb.selectFrom("workspaces").select("id").where("held_since", "is not", null),
      );
    const left = mine.where(
      "deployments.id",
      "<>",
      sql<string>`all(${sql.val([...host.executing])}::uuid[])`,
    );
    const building = mine.where("trigger_kind", "not in", withImage);
    const { recent, atOnce } = host;
    const unbounded = { recent, places: "unbounded" } as const;
    const resumed = await nextInTurn(tx, { waiting: left, running: building }, unbounded);
    if (resumed) {
      await tx
        .updateTable("deployments")
        .set((eb) => ({ attempts: eb("attempts", "+", 1) }))
        .where("id", "=", resumed.id)
        .execute();
      return resumed;
    }
    const waiting = tx
      .selectFrom("deployments")
      .innerJoin("projects", "projects.id", "deployments.project_id")
      .innerJoin("environments", "environments.id", "deployments.environment_id")
      .select(["deployments.id", "projects.workspace_id", "deployments.created_at"])
      .where("deployments.status", "=", "queued")
      .where("projects.deleted_at", "is", null)
      .where("environments.deleted_at", "is", null)
      .where((eb) =>
        eb.not(
          eb.exists(
            eb
              .selectFrom("deployments as other")
              .select("other.id")
              .whereRef("other.environment_id", "=", "deployments.environment_id")
              .where("other.status", "in", running),
          ),
        ),
      );
    const built = waiting.where("trigger_kind", "in", withImage);
    const hasPlace = (await building.execute()).length < atOnce;
    for (;;) {
      const next =
        (await nextInTurn(tx, { waiting: built, running: building }, unbounded)) ??
        (hasPlace
          ? await nextInTurn(tx, { waiting, running: building }, { recent, places: atOnce })
          : undefined);
      if (!next) return undefined;
      const taken = await tx
        .updateTable("deployments")
        .set((eb) => ({
          status: eb
            .case()
            .when("image_tag", "is", null)
            .then<DeploymentStatus>("building")
            .else<DeploymentStatus>("deploying")
            .end(),
          attempts: 1,
          started_at: now,
          host_id: host.id,
        }))
        .where("id", "=", next.id)
        .where("status", "=", "queued")
        .returning("id")
        .executeTakeFirst();
      // Otherwise a request cancelled the deployment after it was chosen.
      if (taken) return next;
    }
  });
}

/** Removes an attempt from the count, because the server stopped gracefully. */
export async function uncountAttempt(db: Db, id: string): Promise<void> {
  await db
    .updateTable("deployments")
    .set((eb) => ({ attempts: eb("attempts", "-", 1) }))
    .where("id", "=", id)
    .where("status", "in", running)
    .execute();
}

/**
 * Returns the reason to stop a running deployment; undefined if there is none. `deleted`: its project or environment
 * was deleted.
 */
export async function findStopRequest(
  db: Db,
  id: string,
): Promise<"none" | "cancel" | "deleted" | "suspended"> {
  const row = await db
    .selectFrom("deployments")
    .innerJoin("projects", "projects.id", "deployments.project_id")
    .innerJoin("environments", "environments.id", "deployments.environment_id")
    .innerJoin("workspaces", "workspaces.id", "projects.workspace_id")
    .select(["deployments.cancel_asked", "workspaces.held_since"])
    .where("deployments.id", "=", id)
    .where("projects.deleted_at", "is", null)
    .where("environments.deleted_at", "is", null)
    .executeTakeFirst();
  if (!row) return "deleted";
  if (row.cancel_asked) return "cancel";
  return row.held_since === null ? "none" : "suspended";
}

/** Columns that a deployment sets while it runs. */
export type Progress = Partial<
  Pick<
    Selectable<DeploymentsTable>,
    | "commit_sha"
    | "commit_message"
    | "commit_author"
    | "image_digest"
    | "image_tag"
    | "image_id"
    | "image_reused"
    | "env_sealed"
  > & { status: "building" | "deploying"; run: RunRecord }
>;

export async function noteProgress(db: Db, id: string, { run, ...progress }: Progress): Promise<void> {
  await db
    .updateTable("deployments")
    .set({ ...progress, ...(run ? { run: JSON.stringify(run) } : {}) })
    .where("id", "=", id)
    .where("status", "in", running)
    .execute();
}

export async function writeProgress(db: Db, id: string, progress: DeploymentProgress): Promise<void> {
  await db
    .updateTable("deployments")
    .set({ progress: JSON.stringify(progress) })
    .where("id", "=", id)
    .where("status", "in", running)
    .execute();
}

/** Resets the progress of deployments that an earlier server of this host ran. */
export async function resetProgress(db: Db, hostId: string): Promise<void> {
  await db
    .updateTable("deployments")
    .set({ progress: JSON.stringify(interrupted) })
    .where("status", "in", running)
    .where("host_id", "=", hostId)
    .execute();
}

export async function noteStep(db: Db, id: string, step: Step): Promise<void> {
  await writeStep(db, id, step).execute();
}

const scanIndex = sql.lit(stepPosition("scan"));
const isLateScan = (late: string) => sql<boolean>`steps->${scanIndex}->>'error' = ${late}`;

/**
 * Returns the image that a job has to scan after its deployment. Returns undefined if the image is scanned already or
 * the project is deleted.
 */
export async function findLateScan(
  db: Db,
  id: string,
  late: string,
): Promise<{ projectId: string; workspaceId: string; tag: string } | undefined> {
  const row = await db
    .selectFrom("deployments")
    .innerJoin("projects", "projects.id", "deployments.project_id")
    .select(["deployments.project_id", "projects.workspace_id", "deployments.image_tag"])
    .where("deployments.id", "=", id)
    .where("projects.deleted_at", "is", null)
    .where(isLateScan(late))
    .executeTakeFirst();
  if (!row?.image_tag) return undefined;
  return { projectId: row.project_id, workspaceId: row.workspace_id, tag: row.image_tag };
}

export async function endLateScan(
  db: Db,
  id: string,
  late: string,
  { status, error, at }: { status: Step["status"]; error: string | null; at: Date },
): Promise<void> {
  const end = JSON.stringify({ status, error, finished_at: at.toISOString() });
  await db
    .updateTable("deployments")
    .set({
      steps: sql<string>`jsonb_set(steps, array[${scanIndex}::text], steps->${scanIndex} || ${end}::jsonb)`,
    })
    .where("id", "=", id)
    .where(isLateScan(late))
    .execute();
}

/**
 * Marks the start of the switch, after which cancellation is refused. Returns false if a cancellation was requested
 * before.
 */
export async function beginRoute(db: Db, id: string, step: Step): Promise<boolean> {
  const { numUpdatedRows } = await writeStep(db, id, step)
    .where("cancel_asked", "=", false)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** Returns an update of a single step, so that parallel steps do not overwrite each other. */
function writeStep(db: Db, id: string, step: Step) {
  return db
    .updateTable("deployments")
    .set({
      steps: sql<string>`jsonb_set(steps, array[${String(stepPosition(step.name))}],
        ${JSON.stringify(step)}::jsonb)`,
    })
    .where("id", "=", id)
    .where("status", "in", running);
}

export async function writeSteps(db: Db, id: string, steps: readonly Step[]): Promise<void> {
  await db
    .updateTable("deployments")
    .set({ steps: JSON.stringify(steps) })
    .where("id", "=", id)
    .where("status", "in", running)
    .execute();
}

/** True if the environment serves this deployment. */
export async function isSwitchedTo(db: Db, id: string): Promise<boolean> {
  const row = await db
    .selectFrom("environments")
    .select("id")
    .where("live_deployment_id", "=", id)
    .executeTakeFirst();
  return row !== undefined;
}

/** True if the environment serves some deployment. */
export async function hasServed(db: Db, environmentId: string): Promise<boolean> {
  const row = await db
    .selectFrom("environments")
    .select("id")
    .where("id", "=", environmentId)
    .where("live_deployment_id", "is not", null)
    .executeTakeFirst();
  return row !== undefined;
}

/**
 * Ends a running deployment, and marks the replaced one as superseded. Returns false if the deployment has ended or is
 * deleted.
 */
export async function endRunning(
  tx: Db,
  id: string,
  end: { status: "live" | "failed" | "cancelled"; error: string | null; at: Date },
): Promise<boolean> {
  const ended = await tx
    .updateTable("deployments")
    .set({
      status: end.status,
      error: end.error,
      finished_at: end.at,
      steps: endedSteps(end.status === "failed" ? "failed" : "skipped", end.at),
    })
    .where("id", "=", id)
    .where("status", "in", running)
    .returning("environment_id")
    .executeTakeFirst();
  if (!ended) return false;
  const { environment_id } = ended;
  await tx
    .updateTable("deployments")
    .set({ status: "superseded" })
    .where("environment_id", "=", environment_id)
    .where("status", "=", "live")
    .where((eb) =>
      eb(
        "id",
        "<>",
        eb.selectFrom("environments").select("live_deployment_id").where("id", "=", environment_id),
      ),
    )
    .execute();
  return true;
}

export type LogPiece = StepLogPiece<StepName>;

/** Appends to the log. Does nothing for a deployment that has ended or is deleted. */
export async function appendLog(
  db: Db,
  id: string,
  pieces: readonly LogPiece[],
  isTruncated: boolean,
): Promise<void> {
  await transaction(db, async (tx) => {
    const bytes = pieces.reduce((sum, { text }) => sum + Buffer.byteLength(text), 0);
    const { numUpdatedRows } = await tx
      .updateTable("deployments")
      .set((eb) => ({ log_bytes: eb("log_bytes", "+", bytes), log_truncated: isTruncated }))
      .where("id", "=", id)
      .where("status", "in", running)
      .executeTakeFirst();
    if (numUpdatedRows === 0n) return;
    await tx
      .insertInto("deployment_logs")
      .values(pieces.map((piece) => ({ deployment_id: id, ...piece })))
      .execute();
  });
}

/** Returns a text for each deployment, which changes with the deployment's status and log. */
export async function statesOf(db: Db, ids: readonly string[]): Promise<[id: string, state: string][]> {
  const rows = await db
    .selectFrom("deployments")
    .select(["id", "status", "log_bytes"])
    .where("id", "=", anyOf(ids))
    .execute();
  return rows.map(({ id, status, log_bytes }) => [id, `${status} ${log_bytes}`]);
}

/** Lists the pieces of a log after the given piece, in order of time. */
export function logAfter(db: Db, id: string, after: number, limit: number): Promise<DeploymentLogRow[]> {
  return db
    .selectFrom("deployment_logs")
    .selectAll()
    .where("deployment_id", "=", id)
    .where("seq", ">", after)
    .orderBy("seq")
    .limit(limit)
    .execute();
}

/** Lists all stored pieces of a log, ordered by step. */
export function wholeLog(db: Db, id: string): Promise<DeploymentLogRow[]> {
  return db
    .selectFrom("deployment_logs")
    .selectAll()
    .where("deployment_id", "=", id)
    .orderBy(sql`array_position(${sql.val([...stepNames])}::text[], step)`)
    .orderBy("seq")
    .execute();
}
