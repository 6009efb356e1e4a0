/**
 * Runs deploys of functions. A version is built, then proved by an instance that loads its handler, and then made live
 * in one transaction. The earlier version serves until that commit, and after any failure before the commit. After a
 * crash the next server resumes the deploy, without a second build. After three crashes the version is failed.
 */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { setTimeout as sleep } from "node:timers/promises";
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import { notify } from "#accounts/notifications/notifications.ts";
import type { App } from "#app.ts";
import { BuildFailed, buildImage, sweepTask } from "#builds/app-images.ts";
import { transaction } from "#db/db.ts";
import type { Transaction } from "#schema.ts";
import { addJob, type Tasks } from "#jobs/jobs.ts";
import type { NextEntry } from "#jobs/next-in-turn.ts";
import { RecentOwners } from "#lib/concurrency/fair-queue.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { HandlerFailed } from "#platform/instances/errors.ts";
import { deployTask } from "./queue-deploy.ts";
import { target } from "../functions.ts";
import { VersionOutput } from "../versions/version-output.ts";
import { contentHash, writeBuildDirectory, recipeOf } from "./image.ts";
import { interrupted, suspended } from "#platform/progress.ts";
import type { FunctionParts } from "../parts.ts";
import {
  changeRow,
  endFailed,
  findEqual,
  findLock,
  findSubject,
  findVersion,
  uncountAttempt,
  lockAny,
  makeLive,
  noteVersionProgress,
  resetVersionProgress,
  setImage,
  takeNextVersion,
  type VersionRow,
} from "../store.ts";

const attemptsMax = 3;
/** Milliseconds between checks for a deletion of the function. */
const pollEveryMs = 250;
/** Images that are kept besides the live one, so that a deploy of recent code needs no build. */
const keptImages = 2;
const errorMaxChars = 4000;
const errorMaxLines = 40;

/** A failed deploy, with a message for the owner. */
class DeployFailed extends Error {}
/** Thrown when the function is deleted, or when the version has already ended. */
class DeployTargetDeleted extends DeployFailed {
  constructor() {
    super("The function was deleted.");
  }
}
/** Thrown when the server stops or the workspace is suspended. */
class DeployInterrupted extends Error {}

type Needs = Pick<App, "db" | "machines" | "config" | "clock" | "log">;

export class FunctionDeploys {
  readonly #app: Needs;
  readonly #parts: FunctionParts;
  readonly #executing = new Set<string>();
  readonly #recent = new RecentOwners();
  /**
   * Mutex of the queries for work. In parallel, each would take the other's version for a leftover of an earlier
   * server.
   */
  readonly #taking = new Semaphore(1);

  constructor(app: Needs, parts: FunctionParts) {
    this.#app = app;
    this.#parts = parts;
  }

  readonly tasks: Tasks = { [deployTask]: (_: unknown, { signal }) => this.run(signal) };

  /** Resumes deploys of an earlier server. Runs before the jobs start. */
  async begin(): Promise<void> {
    await rm(workDirectory(this.#app), { recursive: true, force: true });
    await resetVersionProgress(this.#app.db, this.#app.machines.host.id);
    await addJob(this.#app.db, deployTask, {});
  }

  /** Runs queued versions until none is left, or until the limit of parallel deploys is reached. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
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
    const { db, machines, config } = this.#app;
    if (this.#executing.size >= config.deployConcurrency) return undefined;
    const host = {
      id: machines.host.id,
      atOnce: config.deployConcurrency,
      executing: [...this.#executing],
      recent: this.#recent.list(),
    };
    const next = await takeNextVersion(db, host);
    if (next) this.#executing.add(next.id);
    return next;
  }

  async #execute(id: string, stops: AbortSignal): Promise<void> {
    const { db, config, log } = this.#app;
    const ends = new AbortController();
    const stop = () => ends.abort(new DeployInterrupted());
    stops.addEventListener("abort", stop, { once: true });
    if (stops.aborted) stop();
    const minutes = config.deployTimeoutMinutes;
    const tooLong = new DeployFailed(`It was not done within ${minutes} minutes.`);
    const deadline = setTimeout(() => ends.abort(tooLong), minutes * 60_000);
    const watched = new AbortController();
    const watching = this.#watch(id, ends, watched.signal);
    const output = new VersionOutput(this.#app, id);
    try {
      await this.#deploy(id, output, ends.signal);
    } catch (error) {
      // A frozen instance may fail before the suspension is noticed.
      const isHeld = await this.#isHeld(id);
      if (error instanceof DeployInterrupted || isHeld) {
        await output.flush();
        await uncountAttempt(db, id);
        return await noteVersionProgress(db, id, isHeld ? suspended : interrupted);
      }
      const reason = reasonOf(error);
      if (reason === undefined) log.error({ version: id, err: error }, "a deploy of a function failed");
      const message =
        reason ?? "The deploy failed on this host, and the server's log has the cause. Deploy again.";
      // The log already contains the output of a failed build, so only the error's message is added.
      await output.fail(error instanceof BuildFailed ? error.message : message);
      await this.#fail(id, message);
    } finally {
      await output.flush();
      stops.removeEventListener("abort", stop);
      clearTimeout(deadline);
      watched.abort();
      await watching;
      await rm(workDirectory(this.#app, id), { recursive: true, force: true });
    }
  }

  async #deploy(id: string, output: VersionOutput, signal: AbortSignal): Promise<void> {
    const { db } = this.#app;
    const version = await findVersion(db, id);
    if (!version) throw new DeployTargetDeleted();
    if (version.attempts > attemptsMax)
      throw new DeployFailed(
        `The server stopped ${attemptsMax} times during this deploy. Deploy again to retry.`,
      );
    const built = await this.#reuseOrBuild(version, output, signal);
    await passKillPoint("function_deploy.built");
    await output.begin("start", "Starting an instance to load the handler.");
    const { lock } = await this.#parts.prove(built, signal);
    signal.throwIfAborted();
    await output.append(`The handler is loaded: version ${version.number} goes live.\n`);
    await output.flush();
    await passKillPoint("function_deploy.proved");
    await transaction(db, (tx) => this.#switch(tx, built, lock ?? built.lock));
    await passKillPoint("function_deploy.switched");
    await this.#parts
      .switched(version.function_id)
      .catch((error: unknown) => this.#app.log.error({ err: error }, "a new version is not served yet"));
  }

  async #reuseOrBuild(version: VersionRow, output: VersionOutput, signal: AbortSignal): Promise<VersionRow> {
    if (version.image_id === null) return this.#build(version, output, signal);
    const { attempts, rolled_back_from } = version;
    const to = rolled_back_from === null ? undefined : await findVersion(this.#app.db, rolled_back_from);
    await output.begin(
      "build",
      to && attempts <= 1
        ? `Nothing is built: the image of version ${to.number} is kept.`
        : "Nothing is built: the image is there.",
    );
    return version;
  }

  /** Returns the version with its image. If an equal version has a kept image, that image is used. */
  async #build(version: VersionRow, output: VersionOutput, signal: AbortSignal): Promise<VersionRow> {
    const { db } = this.#app;
    const subject = await findSubject(db, version.id);
    if (!subject) throw new DeployTargetDeleted();
    const hash = await contentHash(version);
    const equal = await findEqual(db, version, hash);
    if (equal?.image_id) {
      const image = { imageId: equal.image_id, contentHash: hash, lock: equal.lock, isReused: true };
      if (!(await setImage(db, version.id, image))) throw new DeployTargetDeleted();
      await output.begin(
        "build",
        `Nothing is built: version ${equal.number} has the same code and dependencies, and its image is kept.`,
      );
      return { ...version, image_id: equal.image_id, lock: equal.lock };
    }
    // A rollback uses the package lock of its source version.
    const lock = version.lock ?? (await findLock(db, version));
    await output.begin("build", `Building version ${version.number}.`);
    const directory = workDirectory(this.#app, version.id);
    await writeBuildDirectory(directory, version, lock);
    return buildImage(
      this.#app,
      {
        workspaceId: subject.workspace_id,
        context: directory,
        rootDirectory: ".",
        recipe: recipeOf(version, lock !== null),
        secrets: {},
        plan: subject.plan,
      },
      { log: (text) => output.append(text), progress: output.build, signal },
      async (tx, { id: imageId }) => {
        if (!(await setImage(tx, version.id, { imageId, contentHash: hash, lock })))
          throw new DeployTargetDeleted();
        return { ...version, image_id: imageId, lock };
      },
    );
  }

  /**
   * Makes the version live. If the stored code differs by now, after a change or a rollback, a deploy stays pending.
   */
  async #switch(tx: Transaction, version: VersionRow, lock: string | null): Promise<void> {
    const now = this.#app.clock.now();
    const row = await lockAny(tx, version.function_id);
    const current = await findVersion(tx, version.id);
    if (!row || row.deleted_at !== null || current?.state !== "building") throw new DeployTargetDeleted();
    await makeLive(tx, version, { lock, kept: keptImages, now });
    const isCurrent =
      row.handler_code === version.handler_code && isDeepStrictEqual(row.dependencies, version.dependencies);
    await changeRow(tx, row.id, {
      live_version_id: version.id,
      last_deployed_at: now,
      error: null,
      pending_deploy: !isCurrent,
    });
    await addJob(tx, sweepTask, {}, { key: sweepTask });
    await recordActivity(tx, actor, "function.deployed", target(row), row.workspace_id, {
      version: version.number,
    });
    await notify(tx, {
      workspaceId: row.workspace_id,
      kind: "deploy_succeeded",
      title: `Version ${version.number} of ${row.name} is live`,
      body: "It responds at the function's address.",
      target: target(row),
    });
  }

  async #fail(id: string, reason: string): Promise<void> {
    await transaction(this.#app.db, async (tx) => {
      const now = this.#app.clock.now();
      await addJob(tx, sweepTask, {}, { key: sweepTask });
      const version = await findVersion(tx, id);
      const row = version && (await lockAny(tx, version.function_id));
      if (!row || (await findVersion(tx, id))?.state !== "building") return;
      await endFailed(tx, id, reason, now);
      if (row.deleted_at !== null) return;
      await changeRow(tx, row.id, { error: reason });
      await recordActivity(tx, actor, "function.deploy_failed", target(row), row.workspace_id, {
        version: version.number,
      });
      await notify(tx, {
        workspaceId: row.workspace_id,
        kind: "deploy_failed",
        title: `Version ${version.number} of ${row.name} failed`,
        body: "The function's record has the reason. The previous version stays live.",
        target: target(row),
      });
    });
    await passKillPoint("function_deploy.failed");
  }

  async #isHeld(id: string): Promise<boolean> {
    const subject = await findSubject(this.#app.db, id);
    return subject !== undefined && subject.held_since !== null;
  }

  async #watch(id: string, ends: AbortController, signal: AbortSignal): Promise<void> {
    const { db } = this.#app;
    while (!signal.aborted && !ends.signal.aborted) {
      await sleep(pollEveryMs, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return;
      // Without PostgreSQL no deletion can have been requested, so the deploy continues.
      const subject = await findSubject(db, id).catch(() => "unknown" as const);
      if (subject === undefined) ends.abort(new DeployTargetDeleted());
      else if (subject !== "unknown" && subject.held_since !== null) ends.abort(new DeployInterrupted());
    }
  }
}

const actor = systemActor("functions");

/** Returns the reason of a failure for the owner; undefined for an internal error, which the owner cannot fix. */
function reasonOf(error: unknown): string | undefined {
  if (error instanceof DeployFailed || error instanceof HandlerFailed) return shortenError(error.message);
  if (error instanceof BuildFailed) return shortenError(`${error.message}\n${error.last}`);
  return undefined;
}

/** Returns the first line and the last lines of a text. The last lines of an installer name the cause. */
function shortenError(text: string): string {
  const lines = text.replaceAll("\0", "").trim().split("\n");
  const kept = lines.length > errorMaxLines ? [lines[0], "…", ...lines.slice(-errorMaxLines + 2)] : lines;
  const whole = kept.join("\n");
  return whole.length > errorMaxChars
    ? `${whole.slice(0, 500)}\n…\n${whole.slice(500 - errorMaxChars)}`
    : whole;
}

/** Returns the directory of builds, or with `id` the subdirectory of that version. */
function workDirectory({ config }: Pick<App, "config">, id = ""): string {
  return join(config.dataDir, "work", "functions", id);
}
