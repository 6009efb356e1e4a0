/**
 * Builds make an image from a base image and shell steps, or from a Dockerfile. Steps are untrusted code, so they run
 * in the build's own machine, with the isolation, limits and network of a sandbox. The files of that machine are
 * captured as data. A Dockerfile is built by the enclosed builder of apps (app-images.ts), and a machine must boot from
 * its image once.
 *
 * This folder owns the queue, the runs, their logs, and the retention of images. A queued build always ends with an
 * image or with a reason, even if the server crashes. A failed build leaves only its reason. Dropping a build stops the
 * build at any stage.
 */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import { removeUnusedImages } from "#machines/built-images.ts";
import { type Watch, Watchers } from "#lib/watcher.ts";
import type { HostImage } from "#machines/host/host.ts";
import { release } from "#machines/placement/placement.ts";
import {
  type BuildLogRow,
  type BuildRow,
  deleteBuild,
  findBuild,
  insertBuild,
  isRestrictedBuild,
  logAfter,
  statesOf,
  wantedImages,
} from "./store.ts";
import { removeUnwantedImages } from "./app-images.ts";
import type { ProcessDefaults } from "./tables.ts";

export interface BuildRequest {
  /** Id of the build and of its image: `[a-z0-9][a-z0-9_.-]*`. */
  id: string;
  /** Workspace of the build. The queue takes builds of different paying accounts in turn. */
  workspaceId: string;
  ownerKind: BuildRow["owner_kind"];
  /** Name of a base image that this host can make, or id of a built image. */
  base: string;
  /** Shell lines. Each runs in `/bin/sh -c` as root. */
  steps: readonly string[];
  network: BuildRow["network"];
  /** Text of a Dockerfile to build instead of the steps. `base` is then only displayed. */
  dockerfile?: string | undefined;
}

export type BuildEnd =
  | {
      status: "succeeded";
      image: HostImage;
      /** Defaults of the image's processes. Undefined after a build of steps: the base image's defaults apply. */
      defaults?: ProcessDefaults | undefined;
    }
  | { status: "failed"; error: string };

/** Handles the end of a build, in the transaction that records the end. */
export interface BuildOwner {
  ended(tx: Db, id: string, end: BuildEnd): Promise<void>;
}

export type BuildOwners = Record<BuildRow["owner_kind"], BuildOwner>;

/** Name of the task that runs queued builds. */
export const runTask = "builds.run";

/** Queues a build, in the transaction that inserts the row of its owner. */
export async function queueBuild(tx: Db, app: Pick<App, "machines">, request: BuildRequest): Promise<void> {
  await insertBuild(tx, {
    id: request.id,
    workspace_id: request.workspaceId,
    owner_kind: request.ownerKind,
    host_id: app.machines.host.id,
    base: request.base,
    steps: JSON.stringify(request.steps),
    network: request.network,
    dockerfile: request.dockerfile ?? null,
  });
  await addJob(tx, runTask, {});
}

/**
 * Stops the build and deletes its row. The returned function removes machine and image after the commit. If the caller
 * never calls it, the next sweep removes both.
 */
export async function dropBuild(
  tx: Parameters<typeof release>[0],
  app: Pick<App, "db" | "machines" | "log">,
  id: string,
): Promise<() => void> {
  const machine = await release(tx, { ownerKind: "build", ownerId: id });
  await deleteBuild(tx, id);
  return () => {
    if (machine) app.machines.destroyLater(machine);
    sweepImages(app).catch((error: unknown) =>
      app.log.warn({ err: error }, "sweeping images failed; a later sweep retries"),
    );
  };
}

/** Removes images that no build's row names and no machine or image uses. */
export async function sweepImages(app: Pick<App, "db" | "machines" | "log">): Promise<void> {
  await removeUnusedImages(app, () => wantedImages(app.db, app.machines.host.id));
  await removeUnwantedImages(app);
}

export interface BuildLog {
  pieces: Pick<BuildLogRow, "seq" | "step" | "at" | "text">[];
  /** True if output was dropped because of the log's limit. */
  truncated: boolean;
  isOver: boolean;
}

/** Returns the pieces of the log after number `after`, or undefined if the build does not exist. */
export async function readLog(
  db: Db,
  id: string,
  { after, limit }: { after: number; limit: number },
): Promise<BuildLog | undefined> {
  // The build is read before its log. If it has ended by then, the log is complete.
  const build = await findBuild(db, id);
  if (!build) return undefined;
  return {
    pieces: await logAfter(db, id, after, limit),
    truncated: build.log_truncated,
    isOver: build.ended_at !== null,
  };
}

/**
 * Polling interval in milliseconds, equal to the interval at which a build writes its log. A notification for each
 * piece would slow down other commits.
 */
const watchers = new Watchers<Db>(300, statesOf);

/** Watches a build's row. All readers of one build's log share a watch and its queries. */
export function watchLog(db: Db, id: string): Watch<never> {
  return watchers.watch(db, id);
}

/** Returns the progress of a build, for a caller that waits for its end. */
export async function progressOf(db: Db, id: string): Promise<{ fraction: number; step: string }> {
  const build = await findBuild(db, id);
  if (build?.status === "running" && build.progress !== null) return build.progress;
  if (!build || build.status === "queued" || build.step === null) return { fraction: 0, step: "waiting" };
  const { step, steps } = build;
  return { fraction: (step - 1) / (steps.length + 1), step: `step ${step} of ${steps.length}` };
}

/**
 * Returns the hosts that a machine may connect to, for the egress proxy. Undefined unless the machine belongs to a
 * build with a restricted network.
 */
export async function allowlistOf(
  db: Db,
  machine: string,
  defaults: readonly string[],
): Promise<readonly string[] | undefined> {
  return (await isRestrictedBuild(db, machine)) ? defaults : undefined;
}
