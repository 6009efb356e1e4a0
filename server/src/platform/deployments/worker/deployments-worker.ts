/**
 * Runs queued deployments: one at a time for each environment, and a limited number of builds in parallel. The next
 * server resumes a stopped server's deployments from their last stored results. After three crashes a deployment is
 * failed, because it is the likely cause. If the address was switched already, only the app's response is left to
 * check.
 */
import { rm } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import { notify } from "#accounts/notifications/notifications.ts";
import type { News } from "#accounts/notifications/news.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import { addJob, type Tasks } from "#jobs/jobs.ts";
import type { NextEntry } from "#jobs/next-in-turn.ts";
import { RecentOwners } from "#lib/concurrency/fair-queue.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { interrupted, suspended } from "#platform/progress.ts";
import { StepLog } from "#platform/step-log.ts";
import { runDeployment, workDirectory } from "./run-deployment.ts";
import { runTask, target } from "../deployments.ts";
import type { Pipeline } from "../pipeline/pipeline.ts";
import {
  DeploymentCancelled,
  DeploymentFailed,
  DeploymentTargetDeleted,
  DeploymentInterrupted,
} from "./reasons.ts";
import { failures, type StepName } from "../states.ts";
import {
  appendLog,
  type DeploymentRow,
  endRunning,
  findById,
  findStopRequest,
  uncountAttempt,
  hasServed,
  isSwitchedTo,
  resetProgress,
  takeNext,
  writeProgress,
} from "../store.ts";

const attemptsMax = 3;
/** Milliseconds between checks for a cancellation, a deletion or a suspension. */
const pollEveryMs = 250;

type End = { status: "live" | "failed" | "cancelled"; error: string | null };

export class Deployments {
  readonly #app: App;
  readonly #pipeline: Pipeline;
  readonly #executing = new Set<string>();
  readonly #recent = new RecentOwners();
  /**
   * Mutex of the queries for work. In parallel, each would take the other's deployment for a leftover of an earlier
   * server.
   */
  readonly #taking = new Semaphore(1);
  #isBegun = false;

  constructor(app: App, pipeline: Pipeline) {
    this.#app = app;
    this.#pipeline = pipeline;
  }

  readonly tasks: Tasks = { [runTask]: (_: unknown, { signal }) => this.run(signal) };

  /**
   * Removes checkouts of an earlier server, and resumes its deployments. The server must accept connections by then,
   * because a deployment is checked through its public address.
   */
  async begin(): Promise<void> {
    await rm(workDirectory(this.#app), { recursive: true, force: true });
    this.#isBegun = true;
    await addJob(this.#app.db, runTask, {});
  }

  /** Resets progress that an earlier server left. Called before the server accepts requests. */
  async resetProgress(): Promise<void> {
    await resetProgress(this.#app.db, this.#app.machines.host.id);
  }

  /** Runs deployments until none is ready. Does nothing before `begin`, which queues another run. */
  async run(signal: AbortSignal): Promise<void> {
    while (this.#isBegun && !signal.aborted) {
      const next = await this.#taking.run(() => this.#take());
      if (!next) return;
      try {
        await this.#execute(next.id, signal);
      } finally {
        this.#executing.delete(next.id);
        this.#recent.recordEnd(next.payerId);
      }
    }
  }

  async #take(): Promise<NextEntry | undefined> {
    const { db, config, clock, machines } = this.#app;
    const host = {
      id: machines.host.id,
      atOnce: config.deployConcurrency,
      executing: [...this.#executing],
      recent: this.#recent.list(),
    };
    const next = await takeNext(db, host, clock.now());
    if (next) this.#executing.add(next.id);
    return next;
  }

  async #execute(id: string, stops: AbortSignal): Promise<void> {
    const app = this.#app;
    const ends = new AbortController();
    const stop = () => ends.abort(new DeploymentInterrupted());
    stops.addEventListener("abort", stop, { once: true });
    if (stops.aborted) stop();
    const minutes = app.config.deployTimeoutMinutes;
    const tooLong = new DeploymentFailed(`it was not done within ${minutes} minutes.`);
    const deadline = setTimeout(() => ends.abort(tooLong), minutes * 60_000);
    const watched = new AbortController();
    const watching = this.#watch(id, ends, watched.signal);
    const log = new StepLog<StepName>(app, (pieces, isCut) => appendLog(app.db, id, pieces, isCut));
    let end: End | undefined;
    try {
      end = await this.#outcome(id, log, ends.signal);
    } finally {
      stops.removeEventListener("abort", stop);
      clearTimeout(deadline);
      watched.abort();
      await watching;
      await log.flush().catch(() => {});
    }
    if (end) await this.#end(id, end);
  }

  /** Runs a deployment and returns its outcome. Returns undefined if the next server resumes the deployment. */
  async #outcome(id: string, log: StepLog<StepName>, signal: AbortSignal): Promise<End | undefined> {
    const { db, log: serverLog } = this.#app;
    try {
      const deployment = await findById(db, id);
      if (!deployment) throw new DeploymentTargetDeleted();
      if (deployment.attempts > attemptsMax && !(await isSwitchedTo(db, id)))
        throw new DeploymentFailed(attemptsExceeded);
      await this.#refreshStatus(id);
      await runDeployment({ app: this.#app, pipeline: this.#pipeline, log, signal }, id);
      return { status: "live", error: null };
    } catch (error) {
      // A frozen app may fail its health check before the suspension is noticed.
      const isHeld = error instanceof DeploymentFailed && (await findStopRequest(db, id)) === "suspended";
      if (error instanceof DeploymentInterrupted || isHeld) {
        await uncountAttempt(db, id);
        const isSuspended = isHeld || (await findStopRequest(db, id)) === "suspended";
        await writeProgress(db, id, isSuspended ? suspended : interrupted);
        return undefined;
      }
      if (error instanceof DeploymentTargetDeleted)
        return { status: "cancelled", error: "The environment was deleted." };
      if (error instanceof DeploymentCancelled) return { status: "cancelled", error: null };
      if (error instanceof DeploymentFailed) return { status: "failed", error: error.message };
      // The app serves, and this server failed. The next run of the job continues.
      if (await isSwitchedTo(db, id)) throw error;
      serverLog.error({ deployment: id, err: error }, "a deployment failed on this server");
      return {
        status: "failed",
        error: "The deployment failed on this host, and the server's log has the cause. Deploy again.",
      };
    }
  }

  /** Updates the page at the address, which shows whether the last deployment failed. */
  async #refreshStatus(id: string): Promise<void> {
    try {
      const deployment = await findById(this.#app.db, id);
      if (deployment) await this.#pipeline.statusChanged?.(this.#app, deployment.environment_id);
    } catch (error) {
      this.#app.log.warn({ deployment: id, err: error }, "the address may show an old state");
    }
  }

  async #watch(id: string, ends: AbortController, signal: AbortSignal): Promise<void> {
    while (!signal.aborted && !ends.signal.aborted) {
      await sleep(pollEveryMs, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return;
      // Without PostgreSQL no cancellation can have been requested, so the deployment continues.
      const request = await findStopRequest(this.#app.db, id).catch(() => "none" as const);
      if (request === "cancel") ends.abort(new DeploymentCancelled());
      if (request === "deleted") ends.abort(new DeploymentTargetDeleted());
      if (request === "suspended") ends.abort(new DeploymentInterrupted());
    }
  }

  async #end(id: string, { status, error }: End): Promise<void> {
    const { db, clock } = this.#app;
    await transaction(db, async (tx) => {
      const ended = await endRunning(tx, id, { status, error, at: clock.now() });
      const deployment = ended ? await findById(tx, id) : undefined;
      if (!deployment) return;
      const actor = systemActor("deployments");
      const action = `deployment.${status === "live" ? "succeeded" : status}`;
      await recordActivity(tx, actor, action, target(deployment), deployment.workspace_id, {
        project_id: deployment.project_id,
        environment_id: deployment.environment_id,
      });
      const isServing = await hasServed(tx, deployment.environment_id);
      if (status !== "cancelled") await notify(tx, newsOf(deployment, isServing));
    });
    await this.#refreshStatus(id);
    await passKillPoint("deploy.ended");
  }
}

const attemptsExceeded = `The server stopped ${attemptsMax} times during this deployment. Deploy again to retry.`;

/**
 * Returns the notification of a deployment's end. The notification contains no output of builds and apps, which stays
 * in the log.
 */
function newsOf(deployment: DeploymentRow, isServing: boolean): News {
  const { number, project_name, environment_name, workspace_id, steps } = deployment;
  const where = `${project_name} (${environment_name})`;
  const told = { workspaceId: workspace_id, target: target(deployment) };
  if (deployment.status === "live") {
    const title = `Deployment ${number} of ${where} is live`;
    return { ...told, kind: "deploy_succeeded", title, body: "It responds at the environment's address." };
  }
  // The failed scan is not the cause, because a scan does not fail a deployment.
  const failed = steps.find(({ name, status }) => status === "failed" && name !== "scan");
  return {
    ...told,
    kind: "deploy_failed",
    title: `Deployment ${number} of ${where} failed`,
    body: `${failed ? failures[failed.name] : "It failed"}; the deployment's log has the reason. ${isServing ? "The previous version stays live." : "Nothing is live yet."}`,
  };
}
