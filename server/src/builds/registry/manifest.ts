/**
 * Manifests of images (OCI image-spec 1.1, and Docker's manifest schema 2): checked before anything they name is
 * downloaded. Pure.
 */
import { z } from "zod";
import { digestPattern } from "./reference.ts";
import { RegistryError } from "./registry-error.ts";

/** Layers of one image: Docker's limit, and that of overlay mounts in older kernels. */
const maxLayers = 127;
const maxIndexEntries = 500;

const imageTypes: ReadonlySet<string> = new Set([
  "application/vnd.oci.image.manifest.v1+json",
  "application/vnd.docker.distribution.manifest.v2+json",
]);
const indexTypes: ReadonlySet<string> = new Set([
  "application/vnd.oci.image.index.v1+json",
  "application/vnd.docker.distribution.manifest.list.v2+json",
]);
const configTypes: ReadonlySet<string> = new Set([
  "application/vnd.oci.image.config.v1+json",
  "application/vnd.docker.container.image.v1+json",
]);
/** Layers that lie elsewhere, encrypted layers and other artifacts have other types. */
const layerType =
  /^application\/vnd\.(?:oci\.image\.layer\.v1\.tar(?:\+gzip|\+zstd)?|docker\.image\.rootfs\.diff\.tar(?:\.gzip)?)$/;

export const accepted: string = [...imageTypes, ...indexTypes].join(", ");

const descriptor = z.object({
  mediaType: z.string().max(255),
  digest: z.string().regex(digestPattern),
  size: z.int().min(0),
});
export type Descriptor = z.output<typeof descriptor>;

const indexEntry = descriptor.extend({
  platform: z
    .object({ os: z.string().max(64).optional(), architecture: z.string().max(64).optional() })
    .optional(),
});
const typed = z.object({ mediaType: z.string().max(255).optional() });
const Index = z.object({ manifests: z.array(indexEntry).max(maxIndexEntries) });
const Manifest = z.object({ schemaVersion: z.literal(2), config: descriptor, layers: z.array(descriptor) });

export interface ImageManifest {
  config: Descriptor;
  layers: Descriptor[];
}

/** Node's names of processors, and Go's. */
const architectures: Readonly<Partial<Record<NodeJS.Architecture, string>>> = {
  x64: "amd64",
  arm64: "arm64",
};
export const ownArchitecture: string = architectures[process.arch] ?? process.arch;

/** Media type of a manifest: the one that it names, else the one of its response. */
export function typeOf(bytes: Buffer, contentType: string): "image" | "index" {
  const named = typed.safeParse(parseJson(bytes)).data?.mediaType;
  const type = named ?? contentType.split(";")[0]?.trim() ?? "";
  if (imageTypes.has(type)) return "image";
  if (indexTypes.has(type)) return "index";
  throw new RegistryError(
    `its manifest has the type ${JSON.stringify(type.slice(0, 100))}, which is no image. Images of OCI and of Docker's schema 2 can be deployed.`,
  );
}

/** Digest and size of the image for this host's processors. */
export function chooseImage(bytes: Buffer): Descriptor {
  const index = Index.safeParse(parseJson(bytes));
  if (!index.success) throw malformedManifest();
  const { manifests } = index.data;
  const isOwn = ({ platform }: z.output<typeof indexEntry>) =>
    platform?.os === "linux" && platform.architecture === ownArchitecture;
  const found = manifests.find((entry) => isOwn(entry) && imageTypes.has(entry.mediaType));
  if (found) return found;
  const others = [
    ...new Set(
      manifests.flatMap(({ platform }) =>
        platform?.os && platform.os !== "unknown" ? [`${platform.os}/${platform.architecture ?? "?"}`] : [],
      ),
    ),
  ];
  throw new RegistryError(
    `it has no image for linux/${ownArchitecture}, which this host needs. Build it with --platform=linux/${ownArchitecture}.${others.length > 0 ? ` It has ${others.slice(0, 10).join(", ")}.` : ""}`,
  );
}

export function readManifest(bytes: Buffer, maxBytes: number): ImageManifest {
  const manifest = Manifest.safeParse(parseJson(bytes));
  if (!manifest.success) throw malformedManifest();
  const { config, layers } = manifest.data;
  if (!configTypes.has(config.mediaType))
    throw new RegistryError("it is an artifact of another kind, no image that can be run.");
  if (layers.length > maxLayers)
    throw new RegistryError(`it has ${layers.length} layers, and at most ${maxLayers} are possible.`);
  const foreign = layers.find(({ mediaType }) => !layerType.test(mediaType));
  if (foreign)
    throw new RegistryError(
      `a layer has the type ${JSON.stringify(foreign.mediaType.slice(0, 100))}. Tar archives, plain or compressed by gzip or zstd, can be deployed.`,
    );
  const bytesInAll = layers.reduce((sum, { size }) => sum + size, 0);
  if (bytesInAll > maxBytes)
    throw new RegistryError(
      `its layers are ${toMiB(bytesInAll)} MiB, more than the ${toMiB(maxBytes)} MiB that an image may have.`,
    );
  return { config, layers };
}

/** An image for other processors ends with `exec format error`, which does not tell its cause. */
export function requireOwnPlatform(config: Buffer): void {
  const platform = z
    .object({ os: z.string().max(64).optional(), architecture: z.string().max(64).optional() })
    .safeParse(parseJson(config));
  if (!platform.success) throw malformedManifest();
  const { os = "linux", architecture = ownArchitecture } = platform.data;
  if (os !== "linux" || architecture !== ownArchitecture)
    throw new RegistryError(
      `it is an image for ${os}/${architecture}, and this host needs linux/${ownArchitecture}. Build it with --platform=linux/${ownArchitecture}.`,
    );
}

function parseJson(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString()) as unknown;
  } catch {
    throw malformedManifest();
  }
}

function malformedManifest(): RegistryError {
  return new RegistryError("its manifest is malformed; push the image again.");
}

export function toMiB(bytes: number): string {
  return (bytes / 1024 ** 2).toFixed(1);
}
