/**
 * Builds: an image made of another one and shell steps, or of a Dockerfile. The steps are anybody's, so they run where anybody's code runs:
 * in a machine of the build's own, on the base image, under the same isolation, limits and ways out as a sandbox; and
 * what they leave is read out of it as data. A Dockerfile goes to the enclosed builder of apps (app-images.ts), and the
 * image boots once before it counts. This folder owns the queue, the run, its log, and how long an image is
 * wanted. It promises that a build which was queued ends, as an image or with a reason, whatever becomes of the server
 * meanwhile; that a failed one leaves nothing but its reason; and that dropping one ends it wherever it is.
 */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import { dropUnusedImages } from "#machines/built-images.ts";
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
  /** Of the build and of the image it makes: `[a-z0-9][a-z0-9_.-]*`. */
  id: string;
  /** Paying accounts take turns in the build queue. */
  workspaceId: string;
  ownerKind: BuildRow["owner_kind"];
  /** Name of an image that this host can make, or id of a built image. */
  base: string;
  /** Each is run by `/bin/sh -c` as root. */
  steps: readonly string[];
  network: BuildRow["network"];
  /** Text of a Dockerfile to build instead of the steps; `base` is then a name for people. */
  dockerfile?: string | undefined;
}

export type BuildEnd =
  | {
      status: "succeeded";
      image: HostImage;
      /** Undefined for a build of steps, whose image has those of its base. */
      defaults?: ProcessDefaults | undefined;
    }
  | { status: "failed"; error: string };

/** Who hears how a build ended, in the transaction that says so. */
export interface BuildOwner {
  ended(tx: Db, id: string, end: BuildEnd): Promise<void>;
}

export type BuildOwners = Record<BuildRow["owner_kind"], BuildOwner>;

/** The task that takes builds from the queue. */
export const runTask = "builds.run";

/** In the transaction that makes what the image is for. */
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
 * The image is wanted no more, and a build that is under way ends. What is called after the commit removes both; should
 * nobody come to that, the next sweep does.
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
    sweepImages(app).catch((error: unknown) => app.log.warn({ err: error }, "images could not be swept yet"));
  };
}

/** Removes the images that no build's row wants and nothing stands on. */
export async function sweepImages(app: Pick<App, "db" | "machines" | "log">): Promise<void> {
  await dropUnusedImages(app, () => wantedImages(app.db, app.machines.host.id));
  await removeUnwantedImages(app);
}

export interface BuildLog {
  pieces: Pick<BuildLogRow, "seq" | "step" | "at" | "text">[];
  /** Output that was not kept. */
  truncated: boolean;
  isOver: boolean;
}

/** What it said after the piece of that number; undefined where there is no such build. */
export async function readLog(
  db: Db,
  id: string,
  { after, limit }: { after: number; limit: number },
): Promise<BuildLog | undefined> {
  // First: what is read after a build's end is all there is.
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

/** How far it is, for one who waits. */
export async function progressOf(db: Db, id: string): Promise<{ fraction: number; step: string }> {
  const build = await findBuild(db, id);
  if (build?.status === "running" && build.progress !== null) return build.progress;
  if (!build || build.status === "queued" || build.step === null) return { fraction: 0, step: "waiting" };
  const { step, steps } = build;
  return { fraction: (step - 1) / (steps.length + 1), step: `step ${step} of ${steps.length}` };
}

/** By machine, for the egress proxy; undefined where the machine is no restricted build's. */
export async function allowlistOf(
  db: Db,
  machine: string,
  defaults: readonly string[],
): Promise<readonly string[] | undefined> {
  return (await isRestrictedBuild(db, machine)) ? defaults : undefined;
}
