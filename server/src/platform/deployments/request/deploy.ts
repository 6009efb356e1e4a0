/**
 * Queues deployments. A request is refused while another deployment of its environment runs; a push is queued behind
 * it.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Transaction } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import { environmentNotFound } from "#platform/environments/errors.ts";
import { projectNotFound } from "#platform/projects/errors.ts";
import { type DeploymentRow, runTask, target } from "../deployments.ts";
import { deploymentInProgress } from "../errors.ts";
import { newSteps } from "../states.ts";
import {
  cancelQueued,
  environmentsOfBranch,
  findById,
  findUnderWay,
  lockEnvironment,
  insertDeployment,
  lockProject,
  type NewDeployment,
} from "../store.ts";
import { triggerColumns } from "./triggers.ts";

type Trigger = DeploymentRow["trigger_kind"];
type Needs = Pick<App, "db" | "clock">;

/** Reason of a queued deployment that a newer push replaced. */
const replacedByPush = "A newer push replaced it.";

/**
 * Queues a deployment of the given image, commit or tag. The default is the newest commit of the environment's branch.
 * An image is a reference as `parseReference` returns it.
 */
export function deploy(
  app: Needs,
  actor: Actor,
  request: {
    project: { id: string };
    environmentId: string;
    trigger: Trigger;
    sha?: string;
    tag?: string;
    image?: string;
    rebuild?: boolean;
  },
): Promise<DeploymentRow> {
  const { project, environmentId, trigger, sha, tag, image, rebuild } = request;
  return queueAlone(app, actor, {
    project_id: project.id,
    environment_id: environmentId,
    trigger_kind: trigger,
    wanted_sha: sha ?? null,
    wanted_tag: tag ?? null,
    image_reference: image ?? null,
    rebuild: rebuild ?? false,
  });
}

type QueueInput = Omit<NewDeployment, "steps" | "trigger_actor" | "trigger_user_id" | "created_at">;

/**
 * Queues a deployment, rollback or restart, unless another deployment of the environment is queued or runs. The
 * function `more` runs under the lock, so no deployment can start meanwhile.
 */
export function queueAlone(
  app: Needs,
  actor: Actor,
  wanted: QueueInput,
  more?: (tx: Transaction) => Promise<Partial<QueueInput>>,
): Promise<DeploymentRow> {
  return transaction(app.db, async (tx) => {
    await lock(tx, wanted.project_id);
    if (!(await lockEnvironment(tx, wanted.environment_id))) throw environmentNotFound();
    const [other] = await findUnderWay(tx, wanted.environment_id);
    if (other) throw deploymentInProgress(other);
    return queue(app, tx, actor, { ...wanted, ...(await more?.(tx)) });
  });
}

const activities: Readonly<Partial<Record<Trigger, string>>> = {
  rollback: "deployment.rolled_back",
  restart: "deployment.restarted",
};

/**
 * Queues a deployment for every environment that follows the branch. Each replaces a queued one, and starts after the
 * running one has ended. Does nothing if the project's `auto_deploy` is off.
 */
export function deployPush(
  app: Needs,
  push: { projectId: string; branch: string; sha: string; actor: Actor },
): Promise<DeploymentRow[]> {
  const { projectId, branch, sha, actor } = push;
  return transaction(app.db, async (tx) => {
    const project = await lock(tx, projectId);
    if (!project.auto_deploy) return [];
    const queued: DeploymentRow[] = [];
    for (const { id } of await environmentsOfBranch(tx, projectId, branch)) {
      for (const other of await findUnderWay(tx, id)) {
        if (other.status === "queued") await cancelQueued(tx, other.id, replacedByPush, app.clock.now());
      }
      const wanted = { project_id: projectId, environment_id: id, wanted_sha: sha };
      queued.push(await queue(app, tx, actor, { ...wanted, trigger_kind: "push" }));
    }
    return queued;
  });
}

/** Locks the project, so that its deployments are queued one after the other. */
async function lock(tx: Transaction, projectId: string) {
  const project = await lockProject(tx, projectId);
  if (!project) throw projectNotFound();
  if (project.is_suspended) throw accountSuspended();
  return project;
}

async function queue(app: Needs, tx: Transaction, actor: Actor, wanted: QueueInput): Promise<DeploymentRow> {
  const id = await insertDeployment(tx, {
    ...wanted,
    steps: newSteps(wanted),
    ...triggerColumns(actor),
    created_at: app.clock.now(),
  });
  const row = (await findById(tx, id))!;
  await addJob(tx, runTask, {});
  const action = activities[wanted.trigger_kind] ?? "deployment.created";
  await recordActivity(tx, actor, action, target(row), row.workspace_id, {
    project_id: row.project_id,
    environment_id: row.environment_id,
    trigger: row.trigger_kind,
  });
  return row;
}
