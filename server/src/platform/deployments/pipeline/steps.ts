/** Runs the steps of a deployment. Each step has a time limit. The row stores its state and its error. */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { DomainError } from "#lib/errors.ts";
import { ProgressWriter, type Span } from "#platform/progress.ts";
import type { StepLog } from "#platform/step-log.ts";
import type { Pipeline, Work } from "./pipeline.ts";
import {
  asClause,
  DeploymentCancelled,
  DeploymentFailed,
  DeploymentTargetDeleted,
  DeploymentInterrupted,
  ownerMessage,
} from "../worker/reasons.ts";
import { failures, type Step, type StepName } from "../states.ts";
import {
  beginRoute,
  type DeploymentRow,
  noteProgress,
  noteStep,
  type Progress,
  writeProgress,
  writeSteps,
} from "../store.ts";

const minuteMs = 60_000;
/**
 * Longest time of a step without output or progress, in milliseconds. The whole deployment has a further limit. Builds
 * and pulls wait in their queue, and the health check has its own deadlines, so these steps have no limit here.
 */
const quietLimitsMs: Readonly<Partial<Record<StepName, number>>> = {
  clone: 10 * minuteMs,
  detect: 5 * minuteMs,
  release: 5 * minuteMs,
  route: 5 * minuteMs,
};
/** Spans of the steps within a deployment, in percent. The scan has no span, because no step waits for the scan. */
const spans: Readonly<Record<StepName, Span>> = {
  pull: { from: 0, to: 80 },
  clone: { from: 0, to: 5 },
  detect: { from: 5, to: 8 },
  build: { from: 8, to: 80 },
  scan: { from: 80, to: 80 },
  release: { from: 80, to: 86 },
  health: { from: 86, to: 96 },
  route: { from: 96, to: 100 },
};
/** Milliseconds without output after which a step logs the cause of its wait. */
const quietMs = 1_500;
/** Milliseconds in which an aborted step can undo its effects. */
const undoWithinMs = 15_000;
const errorLines = 30;

export interface Context {
  app: App;
  pipeline: Pipeline;
  log: StepLog<StepName>;
  /** Signal that aborts with the reason: cancelled, deleted, out of time or interrupted. */
  signal: AbortSignal;
}

/** Stores the state and progress of a deployment's steps. */
export class Steps {
  readonly #context: Context;
  readonly #id: string;
  readonly #progress: ProgressWriter<StepName>;
  #steps: Step[];

  constructor(context: Context, { id }: DeploymentRow, steps: Step[]) {
    this.#context = context;
    this.#id = id;
    this.#steps = steps;
    this.#progress = new ProgressWriter((progress) => writeProgress(context.app.db, id, progress));
  }

  async begin(status: "building" | "deploying"): Promise<void> {
    await this.note({ status });
    await writeSteps(this.#context.app.db, this.#id, this.#steps);
  }

  /**
   * Resumes a deployment whose image exists. The steps that made the image keep their results, and the later steps run
   * again.
   */
  async resumeFrom({ steps }: DeploymentRow, isRollback: boolean): Promise<void> {
    const made: ReadonlySet<StepName> = new Set(["pull", "clone", "detect", "build"]);
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

  async mark(
    name: StepName,
    status: Step["status"],
    error: string | null = null,
    db: Db = this.#context.app.db,
  ): Promise<void> {
    await noteStep(db, this.#id, this.#marked(name, status, error));
  }

  /** Marks the step as skipped. The reason is logged. */
  async skip(name: StepName, why: string): Promise<void> {
    await this.#context.log.append(name, why);
    await this.mark(name, "skipped");
  }

  /** Runs a step. `message` is shown as its progress until `work` reports more. */
  async take<T>(name: StepName, message: string, work: (work: Work) => Promise<T>): Promise<T> {
    const { app, log, signal } = this.#context;
    signal.throwIfAborted();
    await this.#progress.set(name, spans[name].from, message);
    const step = this.#marked(name, "running", null);
    if (name !== "route") await noteStep(app.db, this.#id, step);
    else if (!(await beginRoute(app.db, this.#id, step))) throw new DeploymentCancelled();
    const logLater = setTimeout(() => void log.append(name, `${message}\n`).catch(() => {}), quietMs).unref();
    try {
      const result = await within(quietLimitsMs[name], signal, (ends, touch) =>
        work({
          log: (text) => {
            clearTimeout(logLater);
            touch();
            return log.append(name, text);
          },
          progress: (fraction, now) => {
            touch();
            void this.#progress.within(name, spans[name], fraction, now);
          },
          signal: ends,
        }),
      );
      await this.mark(name, "succeeded");
      return result;
    } catch (cause) {
      const reason = this.#reason(name, cause);
      await log.flush();
      const error = reason instanceof DeploymentFailed ? reason.message : null;
      await this.mark(name, statusAfter(reason), error);
      throw reason;
    } finally {
      clearTimeout(logLater);
      await this.#progress.settled();
    }
  }

  #marked(name: StepName, status: Step["status"], error: string | null): Step {
    const index = this.#steps.findIndex((step) => step.name === name);
    const step = this.#steps[index]!;
    const now = this.#context.app.clock.now().toISOString();
    const marked: Step = {
      name,
      status,
      started_at: status === "running" ? now : status === "pending" ? null : step.started_at,
      finished_at: status === "running" || status === "pending" ? null : now,
      error,
    };
    this.#steps[index] = marked;
    return marked;
  }

  #reason(name: StepName, error: unknown): unknown {
    const { signal, app, log } = this.#context;
    if (signal.aborted && !(signal.reason instanceof DeploymentFailed)) return signal.reason;
    if (error instanceof DeploymentCancelled || error instanceof DeploymentTargetDeleted) return error;
    const why = ownerMessage(error);
    if (why === undefined)
      app.log.error({ deployment: this.#id, step: name, err: error }, "a deployment failed on this server");
    // An error of git about the repository is a complete sentence already.
    if (name === "clone" && error instanceof DomainError) return new DeploymentFailed(error.message);
    const last = name === "build" ? log.last("build", errorLines) : "";
    return new DeploymentFailed(
      `${failures[name]}: ${why === undefined ? "this host reported an internal error; deploy again." : asClause(why)}` +
        (last === "" || why?.includes(last) ? "" : `\nLast output:\n${last}`),
    );
  }
}

/**
 * Returns the step's state after an abort. A cancelled or interrupted step did not fail. An interrupted step runs again
 * when the deployment resumes.
 */
function statusAfter(reason: unknown): Step["status"] {
  if (reason instanceof DeploymentInterrupted) return "pending";
  return reason instanceof DeploymentCancelled || reason instanceof DeploymentTargetDeleted
    ? "skipped"
    : "failed";
}

/** Resolves or rejects with the work, or rejects some time after the abort. Each `touch` restarts the time limit. */
async function within<T>(
  limitMs: number | undefined,
  signal: AbortSignal,
  work: (signal: AbortSignal, touch: () => void) => Promise<T>,
): Promise<T> {
  const ends = new AbortController();
  const stop = () => ends.abort(signal.reason);
  signal.addEventListener("abort", stop, { once: true });
  if (signal.aborted) stop();
  const limit =
    limitMs === undefined
      ? undefined
      : setTimeout(
          () => ends.abort(new DeploymentFailed(`it made no progress for ${limitMs / minuteMs} minutes.`)),
          limitMs,
        );
  let isOver = false;
  const touch = () => {
    if (!isOver) limit?.refresh();
  };
  const gaveUp = Promise.withResolvers<never>();
  let undo: NodeJS.Timeout | undefined;
  ends.signal.addEventListener("abort", () => {
    undo = setTimeout(() => gaveUp.reject(ends.signal.reason as Error), undoWithinMs);
  });
  try {
    return await Promise.race([work(ends.signal, touch), gaveUp.promise]);
  } catch (error) {
    throw ends.signal.aborted ? ends.signal.reason : error;
  } finally {
    signal.removeEventListener("abort", stop);
    isOver = true;
    clearTimeout(limit);
    clearTimeout(undo);
  }
}
