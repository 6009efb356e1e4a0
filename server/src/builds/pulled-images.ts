/**
 * Images that are pulled from a registry instead of built. The reference is resolved first. If the project has an equal
 * image, that image is used and nothing is downloaded. A pulled image has a row, a tag and a scan like a built one.
 */
import { createHmac } from "node:crypto";
import { rm } from "node:fs/promises";
import type { App } from "#app.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { type AppBuildRequest, BuildFailed, type BuiltImage, importAppImage } from "./app-images.ts";
import type { OnProgress } from "./build-progress.ts";
import type { RegistryCredential } from "./registry/client.ts";
import { toMiB } from "./registry/manifest.ts";
import { downloadImage, type PullLimits, type ResolvedImage, resolveImage } from "./registry/pull.ts";
import type { ImageReference } from "./registry/reference.ts";
import { RegistryError } from "./registry/registry-error.ts";

type Needs = Pick<App, "db" | "machines" | "config" | "clock" | "log" | "secrets">;

export interface PullRequest extends Pick<
  AppBuildRequest,
  "workspaceId" | "projectId" | "deploymentId" | "plan"
> {
  reference: ImageReference;
  /** Credential for the reference's registry; no other registry receives it. */
  credential: RegistryCredential | null;
}

export interface PullHooks {
  log: (text: string) => void | Promise<void>;
  progress: OnProgress;
  signal: AbortSignal;
}

/** An image in its registry, with the key that equal images of the project have. */
export interface FoundImage extends ResolvedImage {
  key: Buffer;
}

/** Fraction of a pull that the download takes. In the rest, the builder unpacks the layers. */
const downloadShare = 0.7;

/**
 * Returns the image that the reference names at its registry. Rejects with `BuildFailed`, or with the signal's reason.
 */
export async function findRegistryImage(
  app: Needs,
  request: PullRequest,
  { signal }: PullHooks,
): Promise<FoundImage> {
  const found = await withCause(request, () =>
    resolveImage(request.reference, clientOptions(app, request, signal), limitsOf(app)),
  );
  const key = createHmac("sha256", app.secrets.derive("build-key"))
    .update(JSON.stringify(["image", found.manifestDigest]))
    .digest();
  return { ...found, key };
}

/**
 * Downloads the image into the directory, imports it with a row, and removes the directory. Rejects as
 * `findRegistryImage` does.
 */
export async function pullAppImage(
  app: Needs,
  request: PullRequest & { found: FoundImage; into: string },
  { log, progress, signal }: PullHooks,
): Promise<BuiltImage> {
  const { found, into, ...rest } = request;
  try {
    await withCause(request, () =>
      downloadImage(found, into, clientOptions(app, request, signal), limitsOf(app), ({ bytes, of }) =>
        progress({
          fraction: of === 0 ? 0 : (bytes / of) * downloadShare,
          message: `Downloaded ${toMiB(bytes)} of ${toMiB(of)} MiB.`,
        }),
      ),
    );
    const { config, layers } = found.manifest;
    const { length } = layers;
    await log(`Downloaded ${length} ${length === 1 ? "layer" : "layers"}. Unpacking.\n`);
    progress({ fraction: downloadShare, message: "Unpacking the layers." });
    return await importAppImage(
      app,
      { ...rest, directory: into, digest: found.manifestDigest, config: config.digest, buildKey: found.key },
      {
        log,
        signal,
        progress: ({ message }) => progress({ fraction: downloadShare, message }),
      },
    );
  } finally {
    await rm(into, { recursive: true, force: true });
  }
}

function clientOptions({ config }: Needs, { workspaceId, credential }: PullRequest, signal: AbortSignal) {
  return { opened: parseOpenedHosts(config.allowPrivateHosts), owner: workspaceId, credential, signal };
}

function limitsOf({ config }: Needs): PullLimits {
  return {
    maxBytes: config.machineDiskGb * 1024 ** 3,
    wholeMs: config.buildTimeoutMinutes * 60_000,
  };
}

async function withCause<T>({ reference }: PullRequest, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof RegistryError) throw new BuildFailed(`${reference.text}: ${error.message}`, "");
    throw error;
  }
}
