/** Restarts an environment: deploys the live image on new machines, with the current variables. */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { nothingDeployed } from "#platform/apps/errors.ts";
import { queueAlone } from "./deploy.ts";
import type { DeploymentRow } from "../deployments.ts";
import { findServed } from "../store.ts";

/** Queues the deployment of a restart. The previous machine serves until the new one is healthy. */
export function restart(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  of: { projectId: string; environmentId: string },
): Promise<DeploymentRow> {
  const wanted = {
    project_id: of.projectId,
    environment_id: of.environmentId,
    trigger_kind: "restart",
  } as const;
  // The live deployment is read under the project's lock, because another may have gone live just before.
  return queueAlone(app, actor, wanted, async (tx) => {
    const live = await findServed(tx, of.environmentId);
    if (!live) throw nothingDeployed();
    const { commit_sha, commit_message, commit_author } = live;
    const { image_reference, image_digest, image_tag, image_id, run } = live;
    return {
      wanted_sha: commit_sha,
      commit_sha,
      commit_message,
      commit_author,
      image_reference,
      image_digest,
      image_tag,
      image_id,
      run,
    };
  });
}
