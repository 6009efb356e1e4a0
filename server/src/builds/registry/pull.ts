/**
 * Pulls an image from a registry into a directory, in the layout of the `dir:` transport (containers-transports(5)).
 * The registry may be hostile. Sizes are known and bounded before a download. Each blob must match the size and digest
 * in its manifest. A stalled download is aborted. The enclosed builder unpacks the layers.
 */
import { createHash } from "node:crypto";
import { createWriteStream } from "node:fs";
import { mkdir, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { DeadlineOver, ProgressDeadline } from "#lib/concurrency/progress-deadline.ts";
import { type ClientOptions, manifestMaxBytes, RegistryClient } from "./client.ts";
import {
  chooseImage,
  type Descriptor,
  type ImageManifest,
  readManifest,
  requireOwnPlatform,
  toMiB,
  typeOf,
} from "./manifest.ts";
import { digestPattern, type ImageReference } from "./reference.ts";
import { RegistryError } from "./registry-error.ts";

export interface PullLimits {
  /** Limit in bytes for all layers together, as transferred. */
  maxBytes: number;
  /** Deadline of the whole pull, in milliseconds. */
  wholeMs: number;
  /** Milliseconds without a byte after which a download is aborted. Default: one minute. */
  quietMs?: number;
}

/** An image as its registry describes it, before the download. */
export interface ResolvedImage {
  reference: ImageReference;
  /** Digest that the reference resolves to. For an image with several platforms it is the digest of the index. */
  digest: string;
  /** Digest of the manifest for this host's architecture. */
  manifestDigest: string;
  bytes: Buffer;
  manifest: ImageManifest;
}

export interface PullProgress {
  bytes: number;
  of: number;
}

const quietMs = 60_000;
const configMaxBytes = 4 * 1024 ** 2;
/** Parallel downloads of one pull. Registries limit connections, and more of them rarely speed up a pull. */
const downloadsAtOnce = 3;
/** Bytes of disk that must stay free after a download. */
const diskLeftBytes = 1024 ** 3;

/** Returns the image that the reference names. Rejects with `RegistryError`, or with the signal's reason. */
export async function resolveImage(
  reference: ImageReference,
  options: ClientOptions,
  limits: PullLimits,
): Promise<ResolvedImage> {
  return withDeadline(options, limits, async (ends) => {
    using client = new RegistryClient(reference, ends);
    const named = await client.manifest(reference.version);
    const digest = digestOf(named.bytes);
    if (digestPattern.test(reference.version) && digest !== reference.version)
      throw new RegistryError(`${reference.registry} sent another image than ${reference.version}.`);
    if (typeOf(named.bytes, named.type) === "image")
      return {
        reference,
        digest,
        manifestDigest: digest,
        bytes: named.bytes,
        manifest: readManifest(named.bytes, limits.maxBytes),
      };
    const chosen = chooseImage(named.bytes);
    if (chosen.size > manifestMaxBytes) throw new RegistryError("its manifest is too large.");
    const { bytes } = await client.manifest(chosen.digest);
    if (digestOf(bytes) !== chosen.digest)
      throw new RegistryError(`${reference.registry} sent another image than ${chosen.digest}.`);
    if (typeOf(bytes, chosen.mediaType) !== "image")
      throw new RegistryError("its index points to another index.");
    const manifest = readManifest(bytes, limits.maxBytes);
    return { reference, digest, manifestDigest: chosen.digest, bytes, manifest };
  });
}

/** Downloads the image into an empty directory, which is created if it is missing. Rejects as `resolveImage` does. */
export async function downloadImage(
  { reference, bytes, manifest }: ResolvedImage,
  into: string,
  options: ClientOptions,
  limits: PullLimits,
  onProgress: (progress: PullProgress) => void = () => {},
): Promise<void> {
  await mkdir(into, { recursive: true, mode: 0o700 });
  const { config, layers } = manifest;
  if (config.size > configMaxBytes) throw new RegistryError("its configuration is too large.");
  // A manifest may list a layer twice.
  const blobs = [...new Map(layers.map((layer) => [layer.digest, layer])).values()];
  const of = blobs.reduce((sum, { size }) => sum + size, 0);
  await requireRoom(into, of);
  await withDeadline(options, limits, async ({ progressed, ...ends }) => {
    const stop = new AbortController();
    const signal = AbortSignal.any([ends.signal, stop.signal]);
    using client = new RegistryClient(reference, { ...ends, signal });
    let done = 0;
    const count = (piece: number) => {
      progressed();
      done += piece;
      onProgress({ bytes: Math.min(done, of), of });
    };
    requireOwnPlatform(await download(client, config, into, { count: progressed, signal }));
    const queue = blobs.values();
    const work = async () => {
      for (const blob of queue) await save(client, blob, into, { count, signal });
    };
    const workers = Array.from({ length: downloadsAtOnce }, () =>
      work().catch((error: unknown) => {
        // The first failure aborts the other downloads.
        stop.abort(error);
        throw error;
      }),
    );
    const ended = await Promise.allSettled(workers);
    ends.signal.throwIfAborted();
    if (stop.signal.aborted) throw stop.signal.reason;
    return ended;
  });
  await writeFile(join(into, "manifest.json"), bytes, { mode: 0o600 });
  await writeFile(join(into, "version"), "Directory Transport Version: 1.1\n", { mode: 0o600 });
}

interface Transfer {
  count: (bytes: number) => void;
  signal: AbortSignal;
}

/** Downloads configuration and layers. The configuration is small, and is checked before the layers. */
async function download(
  client: RegistryClient,
  config: Descriptor,
  into: string,
  transfer: Transfer,
): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of checked(await client.blob(config.digest), config, transfer)) pieces.push(piece);
  const bytes = Buffer.concat(pieces);
  await writeFile(fileOf(into, config), bytes, { mode: 0o600 });
  return bytes;
}

async function save(
  client: RegistryClient,
  blob: Descriptor,
  into: string,
  transfer: Transfer,
): Promise<void> {
  const response = await client.blob(blob.digest);
  const file = createWriteStream(fileOf(into, blob), { flags: "wx", mode: 0o600 });
  await pipeline(checked(response, blob, transfer), file, { signal: transfer.signal });
}

/** Yields the bytes of a blob. Throws at the first excess byte, or at the end if the digest differs. */
async function* checked(
  response: AsyncIterable<Buffer>,
  { digest, size }: Descriptor,
  { count }: Transfer,
): AsyncGenerator<Buffer> {
  const hash = createHash("sha256");
  let bytes = 0;
  try {
    for await (const piece of response) {
      bytes += piece.length;
      if (bytes > size) break;
      hash.update(piece);
      count(piece.length);
      yield piece;
    }
  } catch (error) {
    throw new RegistryError(`the download of ${short(digest)} broke off.`, { cause: error });
  }
  if (bytes !== size || `sha256:${hash.digest("hex")}` !== digest)
    throw new RegistryError(
      `the download of ${short(digest)} has other bytes than its manifest names; push the image again.`,
    );
}

async function requireRoom(directory: string, bytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(directory);
  if (bavail * bsize - bytes < diskLeftBytes)
    throw new RegistryError(
      `its layers are ${toMiB(bytes)} MiB, and the server's disk is too full for them. Ask the operator for disk space, or deploy a smaller image.`,
    );
}

/** Calls `work` with options whose signal also aborts at the deadline. */
async function withDeadline<T>(
  options: ClientOptions,
  limits: PullLimits,
  work: (options: ClientOptions & { progressed: () => void }) => Promise<T>,
): Promise<T> {
  using deadline = new ProgressDeadline({ quietMs: limits.quietMs ?? quietMs, wholeMs: limits.wholeMs });
  const signal = AbortSignal.any([options.signal, deadline.signal]);
  try {
    return await work({ ...options, signal, progressed: () => deadline.progressed() });
  } catch (error) {
    options.signal.throwIfAborted();
    if (deadline.signal.reason instanceof DeadlineOver)
      throw new RegistryError(
        `its registry was too slow: the pull stalled, or took longer than ${deadline.seconds} s.`,
        { cause: error },
      );
    throw error;
  }
}

function fileOf(directory: string, { digest }: Descriptor): string {
  return join(directory, digest.slice("sha256:".length));
}

function digestOf(bytes: Buffer): string {
  return `sha256:${createHash("sha256").update(bytes).digest("hex")}`;
}

function short(digest: string): string {
  return digest.slice(0, "sha256:".length + 12);
}
