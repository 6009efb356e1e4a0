/**
 * Scan of a deployment's image. The scan runs in parallel to the other steps, and the deployment does not wait for it.
 * A job completes a scan that outlasts its deployment, so that a restart of the server does not lose it.
 */
import { payerOf } from "#accounts/payers.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { FairJobs } from "#jobs/fair-jobs.ts";
import { addJob } from "#jobs/jobs.ts";
import type { Pipeline } from "./pipeline.ts";
import { ownerMessage } from "../worker/reasons.ts";
import type { Context, Steps } from "./steps.ts";
import { type DeploymentRow, endLateScan, findLateScan } from "../store.ts";

/** Name of the task that completes a scan after its deployment. */
export const lateScanTask = "deployments.scan";

const late =
  "The scan continues after the deployment. This step and the image's findings then show its result.";
const noResult = "The image could not be scanned.";

export class Scan {
  readonly #context: Context;
  readonly #steps: Steps;
  readonly #deploymentId: string;
  #isOver = false;
  #starting: Promise<void> = Promise.resolve();

  constructor(context: Context, steps: Steps, deployment: { id: string; project_id: string }, tag: string) {
    this.#context = context;
    this.#steps = steps;
    this.#deploymentId = deployment.id;
    this.#run(deployment.project_id, tag).catch((error: unknown) =>
      context.app.log.warn({ err: error }, "the result of a scan could not be stored"),
    );
  }

  async #run(projectId: string, tag: string): Promise<void> {
    const { app, pipeline, log } = this.#context;
    if (!pipeline.scanImage) return this.#end("skipped", null);
    this.#starting = this.#steps.mark("scan", "running");
    await this.#starting;
    try {
      const found = await pipeline.scanImage(app, projectId, tag);
      if (!this.#isOver) await log.append("scan", found);
      await this.#end("succeeded", null);
    } catch (error) {
      app.log.warn({ err: error }, "an image could not be scanned");
      await this.#end("failed", ownerMessage(error) ?? noResult);
    }
  }

  /** Queues a job for the unfinished scan. Called at the end of the deployment. */
  async leave(): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    const deployment = this.#deploymentId;
    // A later write of `running` would hide that the scan continues in a job, so the pending write is awaited.
    await this.#starting.catch(() => {});
    await transaction(this.#context.app.db, async (tx) => {
      await this.#steps.mark("scan", "skipped", late, tx);
      await queueLateScan(tx, deployment);
    });
  }

  async #end(status: "succeeded" | "failed" | "skipped", error: string | null): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    await this.#steps.mark("scan", status, error);
  }
}

/** Restarts a scan that an earlier server left running. */
export function resumeScan(context: Context, steps: Steps, deployment: DeploymentRow): Scan | undefined {
  const { image_tag: tag } = deployment;
  const isLeft = deployment.steps.some(
    ({ name, status }) => name === "scan" && (status === "running" || status === "pending"),
  );
  return isLeft && tag !== null ? new Scan(context, steps, deployment, tag) : undefined;
}

/** Limit of parallel late scans. A scan unpacks an image, and then mostly waits for sources of advisories. */
const lateScansAtOnce = 2;
/** Delay in milliseconds before a waiting scan runs from the job table, in case this process has died. */
const deferMs = 60_000;

async function queueLateScan(db: Db, deployment: string, runAt?: Date): Promise<void> {
  const key = `${lateScanTask}:${deployment}`;
  await addJob(db, lateScanTask, { deployment }, { key, ...(runAt && { runAt }) });
}

/** Queue of late scans, which takes the deployments' payers in turn. A server has one such queue. */
export class LateScans {
  readonly #turns = new FairJobs({ limit: lateScansAtOnce, perOwner: 1 });
  readonly #app: App;
  readonly #scanImage: NonNullable<Pipeline["scanImage"]>;

  constructor(app: App, scanImage: NonNullable<Pipeline["scanImage"]>) {
    this.#app = app;
    this.#scanImage = scanImage;
  }

  /** Completes the scan of a deployment when its turn comes. */
  async finish(deploymentId: string, signal: AbortSignal): Promise<void> {
    const { db, clock } = this.#app;
    const wanted = await findLateScan(db, deploymentId, late);
    if (!wanted) return;
    await this.#turns.run(
      {
        owner: await payerOf(db, wanted.workspaceId),
        id: deploymentId,
        work: (stops) => finishLateScan(this.#app, this.#scanImage, deploymentId, stops),
        defer: () => queueLateScan(db, deploymentId, new Date(clock.now().getTime() + deferMs)),
      },
      signal,
    );
  }
}

/**
 * Job of a late scan. Waits for the scan if this process still runs it, else repeats it, and records the result in the
 * step. If the server stops during the job, the next server runs the job again.
 */
export async function finishLateScan(
  app: App,
  scanImage: NonNullable<Pipeline["scanImage"]>,
  deploymentId: string,
  signal: AbortSignal,
): Promise<void> {
  const wanted = await findLateScan(app.db, deploymentId, late);
  if (!wanted) return;
  const [status, error] = await scanImage(app, wanted.projectId, wanted.tag).then(
    () => ["succeeded", null] as const,
    (cause: unknown) => {
      if (signal.aborted) throw cause;
      app.log.warn({ err: cause }, "an image could not be scanned");
      return ["failed", ownerMessage(cause) ?? noResult] as const;
    },
  );
  await endLateScan(app.db, deploymentId, late, { status, error, at: app.clock.now() });
}
