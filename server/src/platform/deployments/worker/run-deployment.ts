/**
 * Runs a deployment, from the commit to the address. The steps run in order, each with a deadline. Each result is
 * stored before the next step begins. The live app is not changed before the new one is healthy. After a failure before
 * the switch, no process of the deployment still runs.
 */
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type { App } from "#app.ts";
import { analyze } from "#builds/detection/detection.ts";
import { isSite, recipeOf } from "#builds/detection/recipe.ts";
import { directoryTree } from "#builds/detection/tree.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { variablesOf } from "#platform/environments/variables.ts";
import { overridesOf } from "#platform/projects/overrides.ts";
import type { ProjectRow } from "#platform/projects/projects.ts";
import { buildKey } from "../pipeline/build-key.ts";
import { imagePruned } from "../errors.ts";
import type { BuiltImage, Candidate, Work } from "../pipeline/pipeline.ts";
import { pullImage } from "../pipeline/pull-image.ts";
import { DeploymentFailed, DeploymentTargetDeleted } from "./reasons.ts";
import { reuseImage } from "../pipeline/reuse.ts";
import { runOf } from "../pipeline/run-record.ts";
import { resumeScan, Scan } from "../pipeline/scan-step.ts";
import { sealEnv, openEnv } from "../pipeline/sealed-env.ts";
import { newSteps } from "../states.ts";
import { type Context, Steps } from "../pipeline/steps.ts";
import { findSubject, type Subject } from "../store.ts";
import type { RunRecord } from "../tables.ts";

/** Returns the directory of this server's checkouts, or with `id` the subdirectory of that deployment. */
export function workDirectory(app: Pick<App, "config">, id = ""): string {
  return join(app.config.dataDir, "work", "deployments", id);
}

/**
 * Runs the steps. Resolves when the deployment serves the address. Rejects with the failure, or with the signal's
 * reason.
 */
export async function runDeployment(context: Context, id: string): Promise<void> {
  const { app, pipeline } = context;
  const subject = await findSubject(app.db, id);
  if (!subject) throw new DeploymentTargetDeleted();
  const { deployment, environment } = subject;
  // An earlier server switched to this deployment, and stopped before it stored the result. Only the app's response is
  // left to check.
  if (environment.live_deployment_id === id) {
    const steps = new Steps(context, deployment, deployment.steps);
    const scan = resumeScan(context, steps, deployment);
    try {
      return await steps.take("route", switchMessage, ({ signal }) =>
        pipeline.proveServed(app, environment, signal),
      );
    } finally {
      await scan?.leave();
    }
  }
  const kept =
    deployment.image_tag === null
      ? undefined
      : await pipeline.findAppImage(app, deployment.project_id, deployment.image_tag);
  // Rollbacks and restarts reuse an image.
  const isRollback = deployment.trigger_kind === "rollback" || deployment.trigger_kind === "restart";
  if (isRollback && deployment.image_tag !== null && !kept && !deployment.allow_rebuild)
    throw new DeploymentFailed(imagePruned().detail);

  const steps = new Steps(context, deployment, newSteps(deployment));
  if (kept && deployment.run) {
    await steps.resumeFrom(deployment, isRollback);
    return start(context, steps, { image: kept, run: deployment.run, isScanned: !isRollback }, subject);
  }
  await steps.begin("building");
  const isImage = deployment.image_reference !== null;
  const built = isImage
    ? await pullImage(context, steps, subject, workDirectory(app, id))
    : await build(context, steps, subject);
  return start(context, steps, { ...built, isScanned: true }, subject);
}

function variables({ app }: Context, { deployment, environment }: Subject) {
  return deployment.restore_env ? openEnv(app, deployment) : variablesOf(app, app.db, environment.id);
}

async function build(
  context: Context,
  steps: Steps,
  subject: Subject,
): Promise<{ image: BuiltImage; run: RunRecord }> {
  const { app, pipeline, log } = context;
  const { deployment, project, environment, plan } = subject;
  const into = workDirectory(app, deployment.id);
  try {
    await rm(into, { recursive: true, force: true });
    await mkdir(into, { recursive: true, mode: 0o700 });
    const { sha, message, author } = await steps.take("clone", "Fetching the repository.", (work) =>
      pipeline.checkout(app, project, {
        branch: environment.branch,
        sha: deployment.commit_sha ?? deployment.wanted_sha,
        tag: deployment.wanted_tag,
        into,
        ...work,
      }),
    );
    await steps.note({ commit_sha: sha, commit_message: message, commit_author: author });
    await passKillPoint("deploy.cloned");
    const found = await steps.take("detect", "Reading the repository.", (work) =>
      detect(project, into, work),
    );
    const env = await variables(context, subject);
    const { recipe, context: rootDirectory } = found;
    const key = buildKey(app, { sha, recipe, context: rootDirectory, variables: env });
    const equal = deployment.rebuild ? undefined : await reuseImage(context, steps, project, key);
    if (equal) await steps.skip("build", reuseMessage(equal));
    const image =
      equal ??
      (await steps.take("build", "Preparing the build.", (work) => {
        const request = {
          workspaceId: project.workspace_id,
          projectId: project.id,
          deploymentId: deployment.id,
          context: into,
          rootDirectory,
          recipe,
          secrets: env,
          plan,
          buildKey: key,
        };
        return pipeline.buildAppImage(app, request, work);
      }));
    const isRollback = deployment.trigger_kind === "rollback";
    const run = (isRollback ? deployment.run : null) ?? runOf(project, image, found);
    const { tag: image_tag, imageId: image_id } = image;
    await steps.note({ status: "deploying", image_tag, image_id, image_reused: equal !== undefined, run });
    await log.flush();
    await passKillPoint("deploy.built");
    return { image, run };
  } finally {
    await rm(into, { recursive: true, force: true });
  }
}

const reuseMessage = ({ tag }: BuiltImage): string =>
  `Nothing is built: image ${tag} was built from the same commit, settings and variables. Deploy with rebuild=true to build it again.`;

interface Detection {
  recipe: string;
  context: string;
  port: number | null;
  /** True for a Dockerfile of the repository. Such an image does not contain the project's start command. */
  isOwnRecipe: boolean;
}

async function detect(project: ProjectRow, directory: string, { log }: Work): Promise<Detection> {
  const analysis = await reportUnsupported(() =>
    analyze(directoryTree(directory), {
      rootDirectory: project.root_directory,
      ...(project.framework === null ? {} : { framework: project.framework }),
      overrides: overridesOf(project),
    }),
  );
  if (!analysis) throw new DeploymentFailed("the repository is empty: push a commit to it.");
  for (const line of analysis.evidence) await log(line);
  for (const line of analysis.warnings) await log(`warning: ${line}`);
  const recipe = await reportUnsupported(() => recipeOf(analysis, overridesOf(project)));
  if (recipe === null) {
    throw new DeploymentFailed(
      `${analysis.warnings.join("; ") || "the framework was not recognised: add a Dockerfile, or set framework of the project"}.`,
    );
  }
  const { context, port, dockerfile } = analysis;
  return { recipe, context, port, isOwnRecipe: dockerfile !== null };
}

/** Runs `work`. A setting that no recipe supports becomes a failure of the deployment. */
async function reportUnsupported<T>(work: () => T | Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw error instanceof RangeError ? new DeploymentFailed(`${error.message}.`) : error;
  }
}

const switchMessage = "Switching the address to the app, and sending a request there.";

/**
 * Returns the warning for a site that responds 404, which suggests a wrong output directory. An API may respond 404.
 */
const emptySiteWarning = (path: string): string =>
  `warning: GET ${path} responds 404: the site has no page there. Set output_directory to the directory that holds its index.html.`;

async function start(
  context: Context,
  steps: Steps,
  { image, run, isScanned }: { image: BuiltImage; run: RunRecord; isScanned: boolean },
  subject: Subject,
): Promise<void> {
  const { app, pipeline } = context;
  const { deployment, project, environment } = subject;
  const scan = isScanned ? new Scan(context, steps, deployment, image.tag) : undefined;
  let candidate: Candidate | undefined;
  try {
    const started = await steps.take("release", "Starting a machine.", async (work) => {
      const env = await variables(context, subject);
      await steps.note({ env_sealed: sealEnv(app, deployment.id, env) });
      const { argv, port, health_check_path: healthCheckPath } = run;
      const { isolation } = project;
      const { size } = environment;
      return pipeline.release(
        app,
        { environment, deployment, image, argv, port, healthCheckPath, env, isolation, size },
        work,
      );
    });
    candidate = started;
    await passKillPoint("deploy.released");
    const waiting = `Waiting for the app: GET ${run.health_check_path} on port ${run.port} must respond with a status below 500.`;
    await steps.take("health", waiting, async ({ log, signal }) => {
      const status = await started.waitHealthy(signal, log);
      if (status === 404 && isSite(run.argv)) await log(emptySiteWarning(run.health_check_path));
    });
    await passKillPoint("deploy.healthy");
    await steps.take("route", switchMessage, ({ signal }) => started.takeOver(signal));
    await passKillPoint("deploy.switched");
  } catch (error) {
    await candidate?.discard().catch((failure: unknown) => {
      app.log.error({ deployment: deployment.id, err: failure }, "a candidate could not be removed");
    });
    throw error;
  } finally {
    await scan?.leave();
  }
}
