/**
 * Reads a store of containers/storage (overlay driver) from its own records: images, their layers and their
 * configuration. containers/storage renames complete files into place, so a reader sees the old state or the
 * new one.
 *
 * Builders write the store, and a builder that a step took over may write anything. No symlink in the store
 * is followed, ids cannot name a directory outside of it, and file sizes are bounded.
 */
import { join } from "node:path";
import { openDirectory, readWithin } from "./bases/base-in-store.ts";

export interface StoredImage {
  /** Id of the image: 64 hexadecimal digits. */
  id: string;
  names: string[];
  /** Digest of the image's manifest, `sha256:…`. */
  digest: string;
  /** Id of the uppermost layer. Undefined for an empty image. */
  layer: string | undefined;
  createdAt: Date;
}

interface StoredLayer {
  id: string;
  parent: string | undefined;
  sizeBytes: number;
}

export interface Store {
  directory: string;
  images: StoredImage[];
  layers: Map<string, StoredLayer>;
}

/** The fields of OCI's image-spec that Kontor uses. */
export interface ImageConfig {
  Env?: string[];
  Cmd?: string[] | null;
  Entrypoint?: string[] | null;
  User?: string;
  WorkingDir?: string;
  ExposedPorts?: Record<string, unknown> | null;
  Labels?: Record<string, string> | null;
}

interface ImageJson {
  id: string;
  names?: string[];
  digest?: string;
  layer?: string;
  created?: string;
}
interface LayerJson {
  id: string;
  parent?: string;
  "diff-size"?: number;
}

const ID = /^[0-9a-f]{64}$/;
/** Largest record file in bytes. A store of 10,000 layers has about 5 MB of records. */
const MAX_BYTES = 64 * 1024 ** 2;

function requireIds(ids: readonly (string | undefined)[]): void {
  for (const id of ids)
    if (id !== undefined && id !== "" && !ID.test(id))
      throw new Error(`${JSON.stringify(id)} is not a valid id in a store`);
}

/** Reads the records of a store. Returns an empty store if the directory does not exist. */
export async function readStore(directory: string): Promise<Store> {
  const [images, layers] = await Promise.all([
    readJson<ImageJson[]>(directory, ["overlay-images"], "images.json"),
    readJson<LayerJson[]>(directory, ["overlay-layers"], "layers.json"),
  ]);
  requireIds((images ?? []).flatMap(({ id, layer }) => [id, layer]));
  requireIds((layers ?? []).flatMap(({ id, parent }) => [id, parent]));
  return {
    directory,
    images: (images ?? []).map(({ id, names, digest, layer, created }) => ({
      id,
      names: names ?? [],
      digest: digest ?? "",
      layer: layer === "" ? undefined : layer,
      createdAt: new Date(created ?? 0),
    })),
    layers: new Map(
      (layers ?? []).map((layer) => [
        layer.id,
        {
          id: layer.id,
          parent: layer.parent === "" ? undefined : layer.parent,
          sizeBytes: layer["diff-size"] ?? 0,
        },
      ]),
    ),
  };
}

/** True if the store has working containers. Without a running build, they are leftovers. */
export async function hasContainers(directory: string): Promise<boolean> {
  const found = await readJson<unknown[]>(directory, ["overlay-containers"], "containers.json");
  return (found?.length ?? 0) > 0;
}

export function layerDirectory(store: string, id: string): string {
  return join(store, "overlay", id, "diff");
}

const IN_STORE = "/store/overlay/";

/** Splits a layer's path into the server's part and the names below it, which builders write. */
export function splitLayer(path: string): { trusted: string; names: string[] } {
  const at = path.lastIndexOf(IN_STORE);
  if (at < 0) return { trusted: path, names: [] };
  return { trusted: path.slice(0, at), names: path.slice(at + 1).split("/") };
}

/**
 * Returns the directories of an image's layers, the lowest first, and their total size. `stores` are searched in order.
 */
export function layersOf(
  image: StoredImage,
  stores: readonly Store[],
): { directories: string[]; sizeBytes: number } {
  const directories: string[] = [];
  let sizeBytes = 0;
  for (let id = image.layer; id !== undefined;) {
    const store = stores.find(({ layers }) => layers.has(id ?? ""));
    const layer = store?.layers.get(id);
    if (!store || !layer || directories.length > 500)
      throw new Error(`layer ${id} of ${image.id} is missing`);
    directories.unshift(layerDirectory(store.directory, id));
    sizeBytes += layer.sizeBytes;
    id = layer.parent;
  }
  return { directories, sizeBytes };
}

export async function readConfig(store: string, image: string): Promise<ImageConfig> {
  const name = `=${Buffer.from(`sha256:${image}`).toString("base64")}`;
  const found = await readJson<{ config?: ImageConfig }>(store, ["overlay-images", image], name);
  if (!found) throw new Error(`image ${image} has no configuration`);
  return found.config ?? {};
}

async function readJson<T>(store: string, directories: string[], file: string): Promise<T | undefined> {
  const text = await readText(store, directories, file).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return "";
    throw error;
  });
  return text.trim() === "" ? undefined : (JSON.parse(text) as T);
}

async function readText(store: string, directories: string[], file: string): Promise<string> {
  const directory = await openDirectory(store, directories);
  try {
    return (await readWithin(directory, file, MAX_BYTES)).toString("utf8");
  } finally {
    await directory.close();
  }
}
