/** Images for tests: layers of a few files, with their configuration and manifest. */
import { createHash } from "node:crypto";
import { gzipSync } from "node:zlib";
import { ownArchitecture } from "../manifest.ts";

export interface Blob {
  mediaType: string;
  bytes: Buffer;
}

export interface TestImage {
  manifest: Blob;
  /** Configuration and layers. */
  blobs: Buffer[];
}

export interface TestFile {
  path: string;
  bytes: Buffer | string;
  mode?: number;
}

export interface ImageOptions {
  config?: Record<string, unknown>;
  architecture?: string;
  /** True for Docker's media types instead of OCI's. */
  isDocker?: boolean;
}

const oci = {
  manifest: "application/vnd.oci.image.manifest.v1+json",
  config: "application/vnd.oci.image.config.v1+json",
  layer: "application/vnd.oci.image.layer.v1.tar+gzip",
};
const docker = {
  manifest: "application/vnd.docker.distribution.manifest.v2+json",
  config: "application/vnd.docker.container.image.v1+json",
  layer: "application/vnd.docker.image.rootfs.diff.tar.gzip",
};

/** Makes an image with a layer for each list of files. */
export function makeImage(layers: readonly (readonly TestFile[])[], options: ImageOptions = {}): TestImage {
  const { config = {}, architecture = ownArchitecture, isDocker = false } = options;
  const types = isDocker ? docker : oci;
  const tars = layers.map(tarOf);
  const zipped = tars.map((tar) => gzipSync(tar));
  const configuration = Buffer.from(
    JSON.stringify({
      architecture,
      os: "linux",
      config,
      rootfs: { type: "layers", diff_ids: tars.map(digestOf) },
    }),
  );
  const manifest = JSON.stringify({
    schemaVersion: 2,
    mediaType: types.manifest,
    config: descriptor(types.config, configuration),
    layers: zipped.map((bytes) => descriptor(types.layer, bytes)),
  });
  return {
    manifest: { mediaType: types.manifest, bytes: Buffer.from(manifest) },
    blobs: [configuration, ...zipped],
  };
}

/** Makes an index of images by architecture. */
export function makeIndex(images: Readonly<Record<string, TestImage>>): Blob {
  const mediaType = "application/vnd.oci.image.index.v1+json";
  const manifests = Object.entries(images).map(([architecture, { manifest }]) => ({
    ...descriptor(manifest.mediaType, manifest.bytes),
    platform: { os: "linux", architecture },
  }));
  return { mediaType, bytes: Buffer.from(JSON.stringify({ schemaVersion: 2, mediaType, manifests })) };
}

export function digestOf(bytes: Buffer): string {
  return `sha256:${createHash("sha256").update(bytes).digest("hex")}`;
}

function descriptor(mediaType: string, bytes: Buffer) {
  return { mediaType, digest: digestOf(bytes), size: bytes.length };
}

/** Returns a tar archive (ustar) of regular files. Unpacking the archive creates the directories. */
function tarOf(files: readonly TestFile[]): Buffer {
  const blocks = files.flatMap(({ path, bytes, mode = 0o644 }) => {
    const body = Buffer.from(bytes);
    const header = Buffer.alloc(512);
    const field = (text: string, at: number) => header.write(text, at, "latin1");
    const octal = (value: number, length: number) => value.toString(8).padStart(length - 1, "0");
    field(path, 0);
    field(octal(mode, 8), 100);
    field(octal(0, 8), 108);
    field(octal(0, 8), 116);
    field(octal(body.length, 12), 124);
    field(octal(0, 12), 136);
    field(" ".repeat(8), 148);
    field("0", 156);
    field("ustar\u000000", 257);
    const sum = header.reduce((total, byte) => total + byte, 0);
    field(`${octal(sum, 7)}\u0000 `, 148);
    return [header, body, Buffer.alloc((512 - (body.length % 512)) % 512)];
  });
  return Buffer.concat([...blocks, Buffer.alloc(1024)]);
}
