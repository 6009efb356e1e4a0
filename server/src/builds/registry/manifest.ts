/**
 * Image manifests (OCI image-spec 1.1, and Docker's manifest schema 2), checked before any download. Pure functions.
 */
import { z } from "zod";
import { digestPattern } from "./reference.ts";
import { RegistryError } from "./registry-error.ts";

/** Limit of layers, equal to Docker's and to that of overlay mounts in older kernels. */
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
/** Matches media types of tar layers. Foreign layers, encrypted layers and other artifacts have other types. */
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

const readFields = [
  "schemaVersion",
  "mediaType",
  "config",
  "layers",
  "digest",
  "size",
  "urls",
  "annotations",
];
const spelling: ReadonlyMap<string, string> = new Map(readFields.map((name) => [fold(name), name]));
/** Fields of an index and of Docker's schema 1. An image's manifest must not have these fields. */
const foreignFields: ReadonlySet<string> = new Set(["manifests", "fslayers"]);

export interface ImageManifest {
  config: Descriptor;
  layers: Descriptor[];
}

/** Go's names of processor architectures, by Node's names. */
const architectures: Readonly<Partial<Record<NodeJS.Architecture, string>>> = {
  x64: "amd64",
  arm64: "arm64",
};
export const ownArchitecture: string = architectures[process.arch] ?? process.arch;

/** Returns the kind of a manifest by its own media type, or by that of its response if it has none. */
export function typeOf(bytes: Buffer, contentType: string): "image" | "index" {
  const named = typed.safeParse(parseJson(bytes)).data?.mediaType;
  const type = named ?? contentType.split(";")[0]?.trim() ?? "";
  if (imageTypes.has(type)) return "image";
  if (indexTypes.has(type)) return "index";
  throw new RegistryError(
    `its manifest has the type ${JSON.stringify(type.slice(0, 100))}, which is not an image. Push an image of OCI or of Docker's schema 2.`,
  );
}

/** Returns digest and size of the manifest for this host's architecture. */
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
        platform?.os && platform.os !== "unknown"
          ? [`${plain(platform.os)}/${plain(platform.architecture ?? "?")}`]
          : [],
      ),
    ),
  ];
  throw new RegistryError(
    `it has no image for linux/${ownArchitecture}, the architecture of this host. Build it with --platform=linux/${ownArchitecture}.${others.length > 0 ? ` It has ${others.slice(0, 10).join(", ")}.` : ""}`,
  );
}

export function readManifest(bytes: Buffer, maxBytes: number): ImageManifest {
  const json = parseJson(bytes);
  const manifest = Manifest.safeParse(json);
  if (!manifest.success || isAmbiguous(json)) throw malformedManifest();
  const { config, layers } = manifest.data;
  if (!configTypes.has(config.mediaType))
    throw new RegistryError("it is an artifact of another kind, not a runnable image.");
  if (layers.some(({ digest }) => digest === config.digest)) throw malformedManifest();
  if (layers.length > maxLayers)
    throw new RegistryError(
      `it has ${layers.length} layers; at most ${maxLayers} are allowed. Merge some of them.`,
    );
  const foreign = layers.find(({ mediaType }) => !layerType.test(mediaType));
  if (foreign)
    throw new RegistryError(
      `a layer has the type ${JSON.stringify(foreign.mediaType.slice(0, 100))}. Push layers as tar archives, plain or compressed by gzip or zstd.`,
    );
  const bytesInAll = layers.reduce((sum, { size }) => sum + size, 0);
  if (bytesInAll > maxBytes)
    throw new RegistryError(
      `its layers have ${toMiB(bytesInAll)} MiB; an image may have ${toMiB(maxBytes)} MiB.`,
    );
  return { config, layers };
}

/**
 * Refuses an image for another architecture. Such an image would fail with `exec format error`, which hides the cause.
 */
export function requireOwnPlatform(config: Buffer): void {
  const platform = z
    .object({ os: z.string().max(64).optional(), architecture: z.string().max(64).optional() })
    .safeParse(parseJson(config));
  if (!platform.success) throw malformedManifest();
  const { os = "linux", architecture = ownArchitecture } = platform.data;
  if (os !== "linux" || architecture !== ownArchitecture)
    throw new RegistryError(
      `it is an image for ${plain(os)}/${plain(architecture)}, and this host needs linux/${ownArchitecture}. Build it with --platform=linux/${ownArchitecture}.`,
    );
}

/**
 * True if the builder could read another image from the same bytes. Go's encoding/json ignores the case of field names,
 * and uses the last of two equal names. A manifest that is an image and an index has two meanings (CVE-2021-41190).
 */
function isAmbiguous(json: unknown): boolean {
  if (Object.keys(json as object).some((name) => foreignFields.has(fold(name)))) return true;
  const { config, layers } = json as { config: object; layers: object[] };
  return [json as object, config, ...layers]
    .flatMap((each) => Object.keys(each))
    .some((name) => (spelling.get(fold(name)) ?? name) !== name);
}

/**
 * Folds the case of a name as Go does. Upper case comes first, because U+017F is a lower-case letter that folds to s.
 */
function fold(name: string): string {
  return name.toUpperCase().toLowerCase();
}

/** Returns a registry's text as one line, for an error. */
function plain(text: string): string {
  return text.replaceAll(/[^\x20-\x7e]+/g, "?");
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
