/**
 * Runs the first step of an image's deployment: resolves the image's reference, and downloads the image if the project
 * lacks it.
 */
import { rm } from "node:fs/promises";
import { atDigest, type ImageReference, parseReference } from "#builds/registry/reference.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import type { ProjectRow } from "#platform/projects/projects.ts";
import { openRegistryCredential } from "#platform/projects/registry-credential.ts";
import type { BuiltImage } from "./pipeline.ts";
import { DeploymentFailed } from "../worker/reasons.ts";
import { reuseImage } from "./reuse.ts";
import { defaultPort, runOf } from "./run-record.ts";
import type { Context, Steps } from "./steps.ts";
import type { DeploymentRow, Subject } from "../store.ts";
import type { RunRecord } from "../tables.ts";

/** Returns the image of the deployment: an equal image of the project, or the one pulled from the registry. */
export async function pullImage(
  context: Context,
  steps: Steps,
  subject: Subject,
  into: string,
): Promise<{ image: BuiltImage; run: RunRecord }> {
  const { app, pipeline, log } = context;
  const { deployment, project, plan } = subject;
  const request = {
    workspaceId: project.workspace_id,
    projectId: project.id,
    deploymentId: deployment.id,
    reference: referenceOf(deployment),
    credential: openRegistryCredential(app, project),
    plan,
  };
  const { text } = request.reference;
  const pulled = await steps.take("pull", `Pulling ${text}.`, async (work) => {
    const found = await pipeline.findRegistryImage(app, request, work);
    await work.log(`${text} is ${found.digest}\n`);
    await steps.note({ image_digest: found.digest });
    const equal = deployment.rebuild ? undefined : await reuseImage(context, steps, project, found.key);
    if (equal) await work.log(`Nothing is downloaded: image ${equal.tag} has the same digest.\n`);
    await rm(into, { recursive: true, force: true });
    const image = equal ?? (await pipeline.pullAppImage(app, { ...request, found, into }, work));
    const run = runOfPulled(deployment, project, image);
    for (const line of warningsOf(project, image)) await work.log(`warning: ${line}\n`);
    return { image, run, isReused: equal !== undefined };
  });
  const { image, run, isReused } = pulled;
  const { tag: image_tag, imageId: image_id } = image;
  await steps.note({ status: "deploying", image_tag, image_id, image_reused: isReused, run });
  await log.flush();
  await passKillPoint("deploy.built");
  return { image, run };
}

/**
 * Returns the reference to pull. A rollback uses the recorded digest, because the tag may name a newer image by now.
 */
function referenceOf({ image_reference, image_digest, trigger_kind }: DeploymentRow): ImageReference {
  const reference = parseReference(image_reference ?? "");
  if (!reference)
    throw new DeploymentFailed(
      `${image_reference} is not a reference to an image: write registry.example.com/team/app:1.2.`,
    );
  const isEarlier = trigger_kind === "rollback" || trigger_kind === "restart";
  return isEarlier && image_digest !== null ? atDigest(reference, image_digest) : reference;
}

function runOfPulled(
  { run, trigger_kind }: DeploymentRow,
  project: ProjectRow,
  image: BuiltImage,
): RunRecord {
  const own =
    (trigger_kind === "rollback" ? run : null) ?? runOf(project, image, { port: null, isOwnRecipe: true });
  if (own.argv.length === 0)
    throw new DeploymentFailed(
      "the image has neither ENTRYPOINT nor CMD: set start_command of the project, such as `node server.js`.",
    );
  return own;
}

function warningsOf(project: ProjectRow, { run }: BuiltImage): string[] {
  const needsPort = project.port === null && run.port === null;
  const needsCommand = run.argv.length === 0;
  return [
    ...(needsPort
      ? [
          `the image names no port (EXPOSE). The app must listen on PORT, which is ${defaultPort}; set port of the project if it listens on another one.`,
        ]
      : []),
    ...(needsCommand ? ["the image has neither ENTRYPOINT nor CMD; start_command is run by /bin/sh."] : []),
  ];
}
