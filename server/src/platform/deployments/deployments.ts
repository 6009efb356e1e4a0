/**
 * A deployment brings a commit of a project's repository to the address of one of its environments. This folder owns
 * the record, the queue and the steps.
 *
 * An environment has at most one running and one queued deployment. The live deployment stays live until the new one is
 * healthy and has responded at the public address. Every deployment ends with a reason, even if the server crashes.
 * This folder neither builds nor runs an app: `pipeline.ts` declares the functions that do.
 */
import type { Actor } from "#accounts/actor.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { deploymentNotFound } from "./errors.ts";
import {
  countOutcomes,
  type DeploymentRow,
  findById,
  findDeployment,
  hasServed,
  listDeployments,
} from "./store.ts";

/** Name of the task that runs queued deployments. */
export const runTask = "platform.deployments";

export async function getDeployment(app: Pick<App, "db">, actor: Actor, id: string): Promise<DeploymentRow> {
  const row = await findDeployment(app.db, id, workspaceIds(actor));
  if (!row) throw deploymentNotFound();
  return row;
}

/** Returns the number of deployments by outcome, of a project or an environment. */
export async function deploymentStats(app: Pick<App, "db">, projectId: string, environmentId?: string) {
  const [tally, { items }] = await Promise.all([
    countOutcomes(app.db, projectId, environmentId),
    listDeployments(app.db, projectId, { skip: 0, limit: 1, environmentId }),
  ]);
  return { ...tally, last: items[0] };
}

/** True if the environment of this deployment serves some deployment. */
export async function isEnvironmentServed({ db }: Pick<App, "db">, id: string): Promise<boolean> {
  const deployment = await findById(db, id);
  return deployment !== undefined && hasServed(db, deployment.environment_id);
}

export function target(deployment: Pick<DeploymentRow, "id" | "number" | "project_name">): {
  kind: string;
  id: string;
  label: string;
} {
  return {
    kind: "deployment",
    id: deployment.id,
    label: `${deployment.project_name} #${deployment.number}`,
  };
}

export type { DeploymentRow };
