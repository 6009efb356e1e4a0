/**
 * Images of apps. The host builds an image from a checkout and a Dockerfile, and stores it under a tag of its project.
 * Deployments run images. This file owns the images' rows; the host owns their bytes. Images of functions are built
 * here too, with rows of their own.
 *
 * A returned image is on disk and has a row. A failed build leaves neither. The next sweep removes an image without a
 * row.
 */
import { RuntimeError } from "@kontor/runtime/driver.ts";
import type { ImageConfig } from "@kontor/runtime/oci/store.ts";
import { payerOf } from "#accounts/payers.ts";
import type { App } from "#app.ts";
import type { Config } from "#config.ts";
import { transaction } from "#db/db.ts";
import type { Db, Transaction } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import { FairSemaphore } from "#lib/concurrency/fair-semaphore.ts";
import { newId } from "#lib/ids.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import type { BuiltAppImage } from "#machines/host/host.ts";
import { removeUnusedAppImages } from "#machines/built-images.ts";
import { BuildProgress, type OnProgress } from "./build-progress.ts";
import { Output } from "./output.ts";
import {
  type AppImageRow,
  findImage,
  findImageByKey,
  imagesOfProject,
  insertImage,
  markPruned,
  nextNumber,
  wantedAppImages,
} from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "config" | "clock" | "log">;

export interface ImageRequest {
  /** Id of the image. Default: a generated id. */
  id?: string;
  workspaceId: string;
  /** Directory of the checkout on this host. No process may change its files during the build. */
  context: string;
  /** Subdirectory of `context` that the builder gets, from the analysis. `.` and `/` mean the whole checkout. */
  rootDirectory: string;
  /** Text of the Dockerfile. */
  recipe: string;
  /** Variables that only the build's commands see. No layer, image history or log contains these variables. */
  secrets: Readonly<Record<string, string>>;
  plan: "starter" | "pro" | "team";
}

export interface AppBuildRequest extends ImageRequest {
  projectId: string;
  deploymentId: string;
  /** Hash of the build's inputs. Builds with equal keys make equal images. */
  buildKey?: Buffer;
}

interface BuildHooks {
  /** Receives the build's output in whole lines, without secrets. Output past 4 MiB is dropped. */
  log: (text: string) => void | Promise<void>;
  progress?: OnProgress;
  signal: AbortSignal;
}

/** An image that the host has built, before its row is inserted. */
export interface MadeImage extends BuiltAppImage {
  id: string;
}

export interface BuiltImage {
  /** Id of the image on the host, as in `machines.image_id`. */
  imageId: string;
  tag: string;
  digest: string;
  sizeBytes: number;
  run: {
    /** Entrypoint and command; empty if the configuration names neither. */
    argv: string[];
    port: number | null;
    healthCheckPath: string | null;
    /** User name or number, with or without `:group`; null means root. */
    user: string | null;
    cwd: string;
    env: Record<string, string>;
  };
}

/** A failed build. `message` is for the project's owner; `last` holds the end of the builder's output. */
export class BuildFailed extends Error {
  override readonly name = "BuildFailed";
  readonly last: string;

  constructor(message: string, last: string) {
    super(message);
    this.last = last;
  }
}

/** Name of the task that sweeps images. Finished builds queue the task. */
export const sweepTask = "app_images.sweep";
/** Delay of the sweep after a build, in which further builds join the same sweep. */
const sweepAfterMs = 30_000;

/** Memory of a build step in MiB, by plan. The host's own limit also applies. */
const memoryMb: Readonly<Record<AppBuildRequest["plan"], number>> = { starter: 1024, pro: 2048, team: 4096 };

const waiting = "Waiting for other builds to end.";

const queues = new WeakMap<Config, FairSemaphore>();
/** Ids of images that this process is building and that have no row yet. */
const underWay = new Set<string>();

/** Builds an image and inserts its row. Rejects with `BuildFailed`, or with the signal's reason. */
export async function buildAppImage(
  app: Needs,
  request: AppBuildRequest,
  hooks: BuildHooks,
): Promise<BuiltImage> {
  return toBuiltImage(await buildImage(app, request, hooks, keepAppImage(app, request)));
}

/**
 * Returns a function that inserts the image's row. `digest` overrides the image's own digest by that of its registry.
 */
function keepAppImage(
  app: Needs,
  { projectId, deploymentId, buildKey }: Pick<AppBuildRequest, "projectId" | "deploymentId" | "buildKey">,
  digest?: string,
) {
  return async (tx: Transaction, image: MadeImage): Promise<AppImageRow> =>
    insertImage(tx, {
      id: image.id,
      project_id: projectId,
      host_id: app.machines.host.id,
      number: await nextNumber(tx, projectId),
      digest: digest ?? image.digest,
      size_bytes: image.sizeBytes,
      run: JSON.stringify(runOf(image.config)),
      deployment_id: deploymentId,
      build_key: buildKey ?? null,
      created_at: app.clock.now(),
    });
}

/**
 * Builds an image once the shared build queue allows it. The function `keep` stores the row that owns the image, so
 * that no sweep removes the image (`wantedAppImages`). If `keep` throws, this function rethrows the error, and the next
 * sweep removes the image. Rejects as `buildAppImage` does.
 */
export async function buildImage<T>(
  app: Needs,
  request: ImageRequest,
  hooks: BuildHooks,
  keep: Keep<T>,
): Promise<T> {
  return runInQueue(app, request.workspaceId, hooks, (work) => build(app, request, work, keep));
}

type Keep<T> = (tx: Transaction, image: MadeImage) => Promise<T>;

interface TurnWork {
  output: Output;
  progress: BuildProgress;
  signal: AbortSignal;
}

async function runInQueue<T>(
  app: Needs,
  workspaceId: string,
  { log, progress: report, signal }: BuildHooks,
  work: (work: TurnWork) => Promise<T>,
): Promise<T> {
  const queue = queueOf(app);
  const output = new Output(log);
  const progress = new BuildProgress((line) => output.write(line), report);
  const payer = await payerOf(app.db, workspaceId);
  return queue.run(payer, () => work({ output, progress, signal }), {
    signal,
    // Builds of one workspace share a cache store, so they run one at a time.
    key: workspaceId,
    onWait: () => {
      output.write(`${waiting}\n`);
      progress.wait(waiting);
    },
  });
}

export interface AppImportRequest extends Omit<
  AppBuildRequest,
  "context" | "rootDirectory" | "recipe" | "secrets"
> {
  /** Directory of the downloaded image on this host, in the layout of `ImageImport`. */
  directory: string;
  /** Digest of the image's manifest. */
  digest: string;
  /** Digest of the image's configuration. */
  config: string;
}

/** Imports a downloaded image once the shared build queue allows it. Rejects as `buildAppImage` does. */
export async function importAppImage(
  app: Needs,
  request: AppImportRequest,
  hooks: BuildHooks,
): Promise<BuiltImage> {
  const { workspaceId, directory, config, plan, digest } = request;
  const row = await runInQueue(app, workspaceId, hooks, ({ output, signal }) =>
    make(
      app,
      { output, signal },
      (id) =>
        app.machines.host.importImage(
          { id, workspace: workspaceId, directory, config, ...limitsOf(app, plan) },
          { log: (text) => output.write(text), signal },
        ),
      keepAppImage(app, request, digest),
    ),
  );
  return toBuiltImage(row);
}

/** Returns undefined for an image that is pruned or never existed. */
export async function findAppImage(
  app: Pick<App, "db">,
  projectId: string,
  tag: string,
): Promise<BuiltImage | undefined> {
  const row = await findAppImageRow(app.db, projectId, tag);
  return row && toBuiltImage(row);
}

/** Returns the newest unpruned image with this build key on this host. */
export async function findEqualAppImage(
  app: Pick<App, "db" | "machines">,
  projectId: string,
  buildKey: Buffer,
): Promise<BuiltImage | undefined> {
  const row = await findImageByKey(app.db, { projectId, hostId: app.machines.host.id, buildKey });
  return row && toBuiltImage(row);
}

export async function findAppImageRow(
  db: Db,
  projectId: string,
  tag: string,
): Promise<AppImageRow | undefined> {
  const number = /^b([1-9]\d{0,8})$/.exec(tag)?.[1];
  return number === undefined ? undefined : findImage(db, projectId, Number(number));
}

/** Lists the project's images, newest first. */
export function listAppImages(db: Db, projectId: string): Promise<AppImageRow[]> {
  return imagesOfProject(db, projectId);
}

export function tagOf({ number }: Pick<AppImageRow, "number">): string {
  return `b${number}`;
}

/** Marks images as pruned, in the caller's transaction. A later sweep removes their bytes once no machine uses them. */
export function pruneAppImages(tx: Db, ids: readonly string[], now: Date): Promise<void> {
  return markPruned(tx, ids, now);
}

/** Removes all images of a project. Does nothing for a project without images. */
export async function deleteProjectImages(app: Needs, projectId: string): Promise<void> {
  const rows = await imagesOfProject(app.db, projectId);
  await markPruned(
    app.db,
    rows.map(({ id }) => id),
    app.clock.now(),
  );
  await sweepAppImages(app);
}

/** Removes images that no row names and no machine or image uses. Prunes build caches that exceed their limit. */
export async function sweepAppImages(app: Needs): Promise<void> {
  await removeUnwantedImages(app);
  await app.machines.host.pruneBuildCaches();
}

/** Removes images that no row names and no machine or image uses. */
export function removeUnwantedImages(app: Pick<Needs, "db" | "machines" | "log">): Promise<void> {
  const listWanted = () => wantedAppImages(app.db, app.machines.host.id);
  return removeUnusedAppImages(app, listWanted, (id) => underWay.has(id));
}

function build<T>(
  app: Needs,
  request: ImageRequest,
  { output, progress, signal }: TurnWork,
  keep: Keep<T>,
): Promise<T> {
  const { workspaceId, context, rootDirectory, recipe, secrets, plan } = request;
  const hooks = {
    log: (text: string) => {
      progress.read(text);
      output.write(text);
    },
    onBase: (name: string, made: { fraction: number; step: string }) => progress.base(name, made),
    signal,
  };
  return make(
    app,
    { output, signal, id: request.id },
    (id) =>
      app.machines.host.buildImage(
        {
          id,
          workspace: workspaceId,
          checkout: context,
          context: rootDirectory,
          dockerfile: recipe,
          secrets,
          ...limitsOf(app, plan),
        },
        hooks,
      ),
    keep,
  );
}

function limitsOf({ config }: Pick<App, "config">, plan: ImageRequest["plan"]) {
  return {
    memoryBytes: Math.min(memoryMb[plan], config.buildMemoryMb) * 1024 ** 2,
    vcpus: config.buildCpus,
    diskBytes: config.machineDiskGb * 1024 ** 3,
    timeoutMs: config.buildTimeoutMinutes * 60_000,
  };
}

/** Makes an image on the host, and calls `keep` in a transaction. */
async function make<T>(
  app: Needs,
  { output, signal, id = newId("app_") }: Pick<TurnWork, "output" | "signal"> & { id?: string | undefined },
  onHost: (id: string) => Promise<BuiltAppImage>,
  keep: Keep<T>,
): Promise<T> {
  underWay.add(id);
  try {
    const made = await onHost(id);
    await passKillPoint("app_build.made");
    return await transaction(app.db, async (tx) => {
      const runAt = new Date(app.clock.now().getTime() + sweepAfterMs);
      await addJob(tx, sweepTask, {}, { key: sweepTask, runAt });
      return keep(tx, { id, ...made });
    });
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    throw explain(error, output.last);
  } finally {
    underWay.delete(id);
    await output.flushed();
  }
}

const ownFault = new Set(["image_failed", "too_large", "no_capacity"]);

function explain(error: unknown, last: string): unknown {
  if (!(error instanceof RuntimeError)) return error;
  if (ownFault.has(error.kind)) return new BuildFailed(error.message, last);
  if (error.kind === "timeout") return new BuildFailed("The build exceeded its time limit.", last);
  return error;
}

/**
 * Returns the run parameters of an image. The image's author controls the configuration, so malformed values count as
 * absent.
 */
export function runOf(config: ImageConfig): AppImageRow["run"] {
  const ports = Object.keys(config.ExposedPorts ?? {}).flatMap((name) => {
    const port = /^(\d{1,5})(?:\/tcp)?$/.exec(name)?.[1];
    return port !== undefined && Number(port) >= 1 && Number(port) <= 65_535 ? [Number(port)] : [];
  });
  const health = config.Labels?.["kontor.health-check-path"] ?? null;
  const pairs = (config.Env ?? []).flatMap((pair): [string, string][] => {
    const at = pair.indexOf("=");
    return at > 0 ? [[pair.slice(0, at), pair.slice(at + 1)]] : [];
  });
  return {
    argv: [...(config.Entrypoint ?? []), ...(config.Cmd ?? [])],
    port: ports[0] ?? null,
    health_check_path: health !== null && /^\/[\x21-\x7e]{0,999}$/.test(health) ? health : null,
    user: config.User ? config.User : null,
    cwd: config.WorkingDir ? config.WorkingDir : "/",
    env: Object.fromEntries(pairs),
  };
}

function toBuiltImage(row: AppImageRow): BuiltImage {
  const { health_check_path: healthCheckPath, ...run } = row.run;
  return {
    imageId: row.id,
    tag: tagOf(row),
    digest: row.digest,
    sizeBytes: row.size_bytes,
    run: { ...run, healthCheckPath },
  };
}

function queueOf({ config }: Pick<App, "config">): FairSemaphore {
  let queue = queues.get(config);
  const limit = config.buildConcurrency;
  if (!queue) queues.set(config, (queue = new FairSemaphore({ limit, perOwner: limit, leavesOne: true })));
  return queue;
}
