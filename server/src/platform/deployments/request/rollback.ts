import { randomUUID } from "node:crypto";
import type { Actor } from "#accounts/actor.ts";
import { planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { queueAlone } from "./deploy.ts";
import { type DeploymentRow, getDeployment } from "../deployments.ts";
import { imagePruned, notRollbackable } from "../errors.ts";
import type { Pipeline } from "../pipeline/pipeline.ts";
import { openEnv, sealEnv } from "../pipeline/sealed-env.ts";

/** Statuses of deployments that went live. */
const wasLive: ReadonlySet<string> = new Set(["live", "superseded"]);

/** Queues a deployment of the image, command and port of an earlier one, with the current variables. */
export async function rollback(
  app: App,
  images: Pick<Pipeline, "findAppImage">,
  actor: Actor,
  id: string,
  { allowRebuild, restoreEnv }: { allowRebuild: boolean; restoreEnv: boolean },
): Promise<DeploymentRow> {
  const to = await getDeployment(app, actor, id);
  const workspace = actor.workspaces.find((each) => each.id === to.workspace_id);
  if (workspace?.plan === "starter") throw planLimit("rollback", false, "pro");
  if (!wasLive.has(to.status)) throw notRollbackable();
  const image =
    to.image_tag === null ? undefined : await images.findAppImage(app, to.project_id, to.image_tag);
  if (!image && !allowRebuild) throw imagePruned();
  const made = randomUUID();
  return queueAlone(app, actor, {
    id: made,
    project_id: to.project_id,
    environment_id: to.environment_id,
    trigger_kind: "rollback",
    rolled_back_from: to.id,
    wanted_sha: to.commit_sha,
    commit_sha: to.commit_sha,
    commit_message: to.commit_message,
    commit_author: to.commit_author,
    image_reference: to.image_reference,
    image_digest: to.image_digest,
    image_tag: image ? to.image_tag : null,
    image_id: image ? to.image_id : null,
    run: to.run,
    allow_rebuild: allowRebuild,
    restore_env: restoreEnv,
    env_sealed: restoreEnv ? sealEnv(app, made, openEnv(app, to)) : null,
  });
}
