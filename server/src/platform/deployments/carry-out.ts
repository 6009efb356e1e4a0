/**
 * One deployment, from the commit to the address: its steps in order, each with a deadline, its result stored before
 * the next begins. The app that serves is not touched before the new one is healthy, and what fails until then leaves
 * nothing of it running.
 */
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type { App } from "#app.ts";
import { BuildFailed } from "#builds/app-images.ts";
import { analyze } from "#builds/detection/detection.ts";
import { recipeOf } from "#builds/detection/recipe.ts";
import { directoryTree } from "#builds/detection/tree.ts";
import { DomainError } from "#lib/errors.ts";
import { reached } from "#lib/kill-points.ts";
import { AppUnhealthy } from "../apps/errors.ts";
import { variablesOf } from "../environments/variables.ts";
import { overridesOf } from "../projects/overrides.ts";
import type { ProjectRow } from "../projects/projects.ts";
import { imagePruned } from "./errors.ts";
import type { DeploymentLog } from "./log.ts";
import type { BuiltImage, Candidate, Pipeline, Work } from "./pipeline.ts";
import { sealEnv, openEnv } from "./sealed-env.ts";
import { failures, newSteps, type Step, type StepName } from "./states.ts";
import {
  beginRoute,
  type DeploymentRow,
  findSubject,
  noteProgress,
  noteStep,
  type Progress,
  writeSteps,
} from "./store.ts";
import type { RunRecord } from "./tables.ts";

/** A reason to end a deployment that its owner may read. */
export class DeploymentFailed extends Error {}
/** Somebody wants it ended. */
export class Cancelled extends Error {}
/** Its project or environment is gone. */
export class Dropped extends Error {}

const minuteMs = 60_000;
/**
 * How long each may take at most. What waits for others (a build in its queue) and what has a deadline of its own
 * that its owner knows (the health check's) has the whole deployment's.
 */
const stepLimitsMs: Readonly<Partial<Record<StepName, number>>> = {
  clone: 10 * minuteMs,
  detect: minuteMs,
  release: 5 * minuteMs,
  route: 2 * minuteMs,
};
/** What was told to end has so long to undo what it began. */
const undoWithinMs = 15_000;
const buildLinesTold = 30;

export interface Context {
  app: App;
  pipeline: Pipeline;
  log: DeploymentLog;
  /** Aborts with the reason why it ends: cancelled, dropped, out of time, or the server stops. */
  signal: AbortSignal;
}

/** The checkouts of this server, each in a directory of its deployment's id. */
export function workDirectory(app: Pick<App, "config">, id = ""): string {
  return join(app.config.dataDir, "work", "deployments", id);
}

/** Throws where it failed, or `signal`'s reason; it is switched to when this returns. */
export async function carryOut(context: Context, id: string): Promise<void> {
  const { app, pipeline } = context;
  const subject = await findSubject(app.db, id);
  if (!subject) throw new Dropped();
  const { deployment, environment } = subject;
  // An earlier server switched to it and could not say so any more: whether it answers is all that is to be seen.
  if (environment.live_deployment_id === id) {
    const steps = new Steps(context, deployment, deployment.steps);
    return steps.take("route", ({ signal }) => pipeline.proveServed(app, environment, signal));
  }
  const kept =
    deployment.image_tag === null
      ? undefined
      : await pipeline.findAppImage(app, deployment.project_id, deployment.image_tag);
  const isRollback = deployment.trigger_kind === "rollback";
  if (isRollback && deployment.image_tag !== null && !kept && !deployment.allow_rebuild)
    throw new DeploymentFailed(imagePruned().detail);

  const steps = new Steps(context, deployment, newSteps());
  if (kept && deployment.run) {
    await steps.goOnFrom(deployment, isRollback);
    return start(context, steps, { image: kept, run: deployment.run, isScanned: !isRollback }, subject);
  }
  await steps.begin("building");
  const built = await build(context, steps, subject);
  return start(context, steps, { ...built, isScanned: true }, subject);
}

/** What a deployment is of, as it is when it is carried out. */
type Subject = NonNullable<Awaited<ReturnType<typeof findSubject>>>;

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
    const { sha, message, author } = await steps.take("clone", (work) =>
      pipeline.checkout(app, project, {
        branch: environment.branch,
        sha: deployment.commit_sha ?? deployment.wanted_sha,
        into,
        ...work,
      }),
    );
    await steps.note({ commit_sha: sha, commit_message: message, commit_author: author });
    await reached("deploy.cloned");
    const found = await steps.take("detect", (work) => detect(project, into, work));
    const image = await steps.take("build", async (work) => {
      const request = {
        workspaceId: project.workspace_id,
        projectId: project.id,
        deploymentId: deployment.id,
        context: into,
        rootDirectory: found.context,
        recipe: found.recipe,
        secrets: await variables(context, subject),
        plan,
      };
      return pipeline.buildAppImage(app, request, work);
    });
    const isRollback = deployment.trigger_kind === "rollback";
    const run = (isRollback ? deployment.run : null) ?? runOf(project, image, found);
    await steps.note({ status: "deploying", image_tag: image.tag, image_id: image.imageId, run });
    await log.flush();
    await reached("deploy.built");
    return { image, run };
  } finally {
    await rm(into, { recursive: true, force: true });
  }
}

interface Detected {
  recipe: string;
  context: string;
  port: number | null;
  /** The recipe is the repository's: what its owner said of a start is not in it. */
  isOwnRecipe: boolean;
}

async function detect(project: ProjectRow, directory: string, { log }: Work): Promise<Detected> {
  const analysis = await refusing(() =>
    analyze(directoryTree(directory), {
      rootDirectory: project.root_directory,
      ...(project.framework === null ? {} : { framework: project.framework }),
    }),
  );
  if (!analysis) throw new DeploymentFailed("the repository is empty: push a commit to it.");
  for (const line of analysis.evidence) await log(line);
  for (const line of analysis.warnings) await log(`warning: ${line}`);
  const recipe = await refusing(() => recipeOf(analysis, overridesOf(project)));
  if (recipe === null) {
    throw new DeploymentFailed(`${analysis.warnings.join("; ") || "nothing was recognised"}.`);
  }
  const { context, port, dockerfile } = analysis;
  return { recipe, context, port, isOwnRecipe: dockerfile !== null };
}

/** What no recipe can hold is said as it is. */
async function refusing<T>(work: () => T | Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw error instanceof RangeError ? new DeploymentFailed(`${error.message}.`) : error;
  }
}

/** As the project's owner says, else as the image does. */
function runOf(project: ProjectRow, { run }: BuiltImage, { port, isOwnRecipe }: Detected): RunRecord {
  const { start_command: command, health_check_path: path } = project;
  return {
    argv: isOwnRecipe && command !== null ? ["/bin/sh", "-c", command] : run.argv,
    port: project.port ?? run.port ?? port ?? 8080,
    health_check_path: path === "/" ? (run.healthCheckPath ?? path) : path,
  };
}

async function start(
  context: Context,
  steps: Steps,
  { image, run, isScanned }: { image: BuiltImage; run: RunRecord; isScanned: boolean },
  subject: Subject,
): Promise<void> {
  const { app, pipeline } = context;
  const { deployment, project, environment } = subject;
  const scan = isScanned ? new Scan(context, steps, project.id, image.tag) : undefined;
  let candidate: Candidate | undefined;
  try {
    const started = await steps.take("release", async (work) => {
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
    await reached("deploy.released");
    await steps.take("health", ({ signal }) => started.waitHealthy(signal));
    await reached("deploy.healthy");
    await steps.take("route", ({ signal }) => started.takeOver(signal));
    await reached("deploy.switched");
  } catch (error) {
    await candidate?.discard().catch((failure: unknown) => {
      app.log.error({ deployment: deployment.id, err: failure }, "a candidate could not be removed");
    });
    throw error;
  } finally {
    await scan?.leave();
  }
}

/** Beside the other steps: it tells, and nothing waits for it. */
class Scan {
  readonly #context: Context;
  readonly #steps: Steps;
  #isOver = false;

  constructor(context: Context, steps: Steps, projectId: string, tag: string) {
    this.#context = context;
    this.#steps = steps;
    this.#run(projectId, tag).catch((error: unknown) =>
      context.app.log.warn({ err: error }, "how a scan ended was not noted"),
    );
  }

  async #run(projectId: string, tag: string): Promise<void> {
    const { app, pipeline, log } = this.#context;
    if (!pipeline.scanImage) return this.#end("skipped", null);
    await this.#steps.mark("scan", "running");
    try {
      const found = await pipeline.scanImage(app, projectId, tag);
      if (!this.#isOver) await log.say("scan", found);
      await this.#end("succeeded", null);
    } catch (error) {
      app.log.warn({ err: error }, "an image could not be scanned");
      await this.#end("failed", told(error) ?? "The image could not be scanned.");
    }
  }

  /** One that is not done goes on without us: what it finds lies with the image. */
  leave(): Promise<void> {
    return this.#end("skipped", "Not waited for: what it finds is told with the project's images.");
  }

  async #end(status: "succeeded" | "failed" | "skipped", error: string | null): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    await this.#steps.mark("scan", status, error);
  }
}

/** The steps as they are told to whoever looks. */
class Steps {
  readonly #context: Context;
  readonly #id: string;
  #steps: Step[];

  constructor(context: Context, { id }: DeploymentRow, steps: Step[]) {
    this.#context = context;
    this.#id = id;
    this.#steps = steps;
  }

  async begin(status: "building" | "deploying"): Promise<void> {
    await this.note({ status });
    await writeSteps(this.#context.app.db, this.#id, this.#steps);
  }

  /** The image is there: what led to it stands as it was, and what comes after it is done again. */
  async goOnFrom({ steps }: DeploymentRow, isRollback: boolean): Promise<void> {
    const made: ReadonlySet<StepName> = new Set(["clone", "detect", "build"]);
    this.#steps = this.#steps.map((fresh, index) => {
      if (isRollback && (made.has(fresh.name) || fresh.name === "scan"))
        return { ...fresh, status: "skipped" };
      return made.has(fresh.name) ? (steps[index] ?? fresh) : fresh;
    });
    await this.begin("deploying");
  }

  async note(progress: Progress): Promise<void> {
    await noteProgress(this.#context.app.db, this.#id, progress);
  }

  async mark(name: StepName, status: Step["status"], error: string | null = null): Promise<void> {
    await noteStep(this.#context.app.db, this.#id, this.#marked(name, status, error));
  }

  async take<T>(name: StepName, work: (work: Work) => Promise<T>): Promise<T> {
    const { app, log, signal } = this.#context;
    signal.throwIfAborted();
    const step = this.#marked(name, "running", null);
    if (name !== "route") await noteStep(app.db, this.#id, step);
    else if (!(await beginRoute(app.db, this.#id, step))) throw new Cancelled();
    try {
      const result = await within(stepLimitsMs[name], signal, (ends) =>
        work({ log: (text) => log.say(name, text), signal: ends }),
      );
      await this.mark(name, "succeeded");
      return result;
    } catch (error) {
      const reason = this.#reason(name, error);
      await log.flush();
      await this.mark(name, "failed", reason instanceof DeploymentFailed ? reason.message : null);
      throw reason;
    }
  }

  #marked(name: StepName, status: Step["status"], error: string | null): Step {
    const index = this.#steps.findIndex((step) => step.name === name);
    const step = this.#steps[index]!;
    const now = this.#context.app.clock.now().toISOString();
    const marked: Step = {
      name,
      status,
      started_at: status === "running" ? now : step.started_at,
      finished_at: status === "running" ? null : now,
      error,
    };
    this.#steps[index] = marked;
    return marked;
  }

  #reason(name: StepName, error: unknown): unknown {
    const { signal, app, log } = this.#context;
    if (signal.aborted && !(signal.reason instanceof DeploymentFailed)) return signal.reason;
    if (error instanceof Cancelled || error instanceof Dropped) return error;
    const why = told(error);
    if (why === undefined)
      app.log.error({ deployment: this.#id, step: name, err: error }, "a deployment failed on this server");
    // What git says of a repository is a sentence of its own.
    if (name === "clone" && error instanceof DomainError) return new DeploymentFailed(error.message);
    const last = name === "build" ? log.last("build", buildLinesTold) : "";
    return new DeploymentFailed(
      `${failures[name]}: ${why === undefined ? "this host could not carry it out." : asClause(why)}` +
        (last === "" || why?.includes(last) ? "" : `\nIt said last:\n${last}`),
    );
  }
}

const readable = [DomainError, DeploymentFailed, BuildFailed, AppUnhealthy];

/** As its owner may read it; undefined for what is the server's own. */
function told(error: unknown): string | undefined {
  return readable.some((kind) => error instanceof kind) ? (error as Error).message : undefined;
}

/** A sentence behind a colon. */
function asClause(sentence: string): string {
  return /^[A-Z][a-z ]/.test(sentence) ? sentence.charAt(0).toLowerCase() + sentence.slice(1) : sentence;
}

/** Ends with the work, or a while after it was told to end: nothing holds a deployment up for ever. */
async function within<T>(
  limitMs: number | undefined,
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const ends = new AbortController();
  const stop = () => ends.abort(signal.reason);
  signal.addEventListener("abort", stop, { once: true });
  if (signal.aborted) stop();
  const limit =
    limitMs === undefined
      ? undefined
      : setTimeout(
          () => ends.abort(new DeploymentFailed(`it was not done within ${limitMs / minuteMs} minutes.`)),
          limitMs,
        );
  const gaveUp = Promise.withResolvers<never>();
  let undo: NodeJS.Timeout | undefined;
  ends.signal.addEventListener("abort", () => {
    undo = setTimeout(() => gaveUp.reject(ends.signal.reason as Error), undoWithinMs);
  });
  try {
    return await Promise.race([work(ends.signal), gaveUp.promise]);
  } catch (error) {
    throw ends.signal.aborted ? ends.signal.reason : error;
  } finally {
    signal.removeEventListener("abort", stop);
    clearTimeout(limit);
    clearTimeout(undo);
  }
}
