/**
 * Builds: an image from a base image and shell steps, or from a Dockerfile. Steps are untrusted code, so they run in
 * the build's own machine, with the isolation, limits and network of a sandbox. Their result is read out as data. A
 * Dockerfile goes to the enclosed builder of apps (app-images.ts), and the image must boot once.
 *
 * This folder owns the queue, the run, its log, and the retention of images. A queued build always ends, as an image or
 * with a reason, even if the server crashes. A failed build leaves only its reason. Dropping a build stops it at any
 * stage.
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
  /** Paying accounts take turns in the build queue. */
  workspaceId: string;
  ownerKind: BuildRow["owner_kind"];
  /** Name of an image that this host can build, or id of a built image. */
  base: string;
  /** Each step runs in `/bin/sh -c` as root. */
  steps: readonly string[];
  network: BuildRow["network"];
  /** Text of a Dockerfile to build instead of the steps; `base` is then shown to people only. */
  dockerfile?: string | undefined;
}

export type BuildEnd =
  | {
      status: "succeeded";
      image: HostImage;
      /** Undefined for a build of steps, whose image has the defaults of its base. */
      defaults?: ProcessDefaults | undefined;
    }
  | { status: "failed"; error: string };

/** Callback for the end of a build, in the transaction that records it. */
export interface BuildOwner {
  ended(tx: Db, id: string, end: BuildEnd): Promise<void>;
}

export type BuildOwners = Record<BuildRow["owner_kind"], BuildOwner>;

/** Task that runs queued builds. */
export const runTask = "builds.run";

/** Queues a build in the transaction that creates its owner's row. */
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
 * Stops the build and gives up its image. The returned function removes both after the commit; if it never runs, the
 * next sweep does.
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
  /** True if output was dropped. */
  truncated: boolean;
  isOver: boolean;
}

/** Returns the pieces of the log after this number; undefined if the build does not exist. */
export async function readLog(
  db: Db,
  id: string,
  { after, limit }: { after: number; limit: number },
): Promise<BuildLog | undefined> {
  // The build is read first: if it has ended, the log read after it is complete.
  const build = await findBuild(db, id);
  if (!build) return undefined;
  return {
    pieces: await logAfter(db, id, after, limit),
    truncated: build.log_truncated,
    isOver: build.ended_at !== null,
  };
}

/** Polling interval, and a build's write interval. A notification for each piece would slow down other commits. */
const watchers = new Watchers<Db>(300, statesOf);

/** Watches a build's row. All readers of a build's log share the watch and its reads. */
export function watchLog(db: Db, id: string): Watch<never> {
  return watchers.watch(db, id);
}

/** Progress of a build, for waiting callers. */
export async function progressOf(db: Db, id: string): Promise<{ fraction: number; step: string }> {
  const build = await findBuild(db, id);
  if (build?.status === "running" && build.progress !== null) return build.progress;
  if (!build || build.status === "queued" || build.step === null) return { fraction: 0, step: "waiting" };
  const { step, steps } = build;
  return { fraction: (step - 1) / (steps.length + 1), step: `step ${step} of ${steps.length}` };
}

/** Allowlist of a machine, for the egress proxy; undefined unless it belongs to a restricted build. */
export async function allowlistOf(
  db: Db,
  machine: string,
  defaults: readonly string[],
): Promise<readonly string[] | undefined> {
  return (await isRestrictedBuild(db, machine)) ? defaults : undefined;
}
