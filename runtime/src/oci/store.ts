/**
 * What lies in a store of containers/storage (overlay driver), read from its own records: images, the layers they are
 * made of, and their configuration. Its files are written aside and renamed, so a reader sees one state or the next.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";

export interface StoredImage {
  /** 64 hexadecimal digits. */
  id: string;
  names: string[];
  /** `sha256:…` of its manifest. */
  digest: string;
  /** The uppermost layer; absent where it is empty. */
  layer: string | undefined;
  createdAt: Date;
}

export interface StoredLayer {
  id: string;
  parent: string | undefined;
  sizeBytes: number;
}

export interface Store {
  directory: string;
  images: StoredImage[];
  layers: Map<string, StoredLayer>;
}

/** As OCI's image-spec has it, what we use of it. */
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

/** An empty one where there is none. */
export async function readStore(directory: string): Promise<Store> {
  const [images, layers] = await Promise.all([
    readJson<ImageJson[]>(join(directory, "overlay-images/images.json")),
    readJson<LayerJson[]>(join(directory, "overlay-layers/layers.json")),
  ]);
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

/** Working containers; those of nobody where no build is under way. */
export async function hasContainers(directory: string): Promise<boolean> {
  const found = await readJson<unknown[]>(join(directory, "overlay-containers/containers.json"));
  return (found?.length ?? 0) > 0;
}

export function layerDirectory(store: string, id: string): string {
  return join(store, "overlay", id, "diff");
}

/** Directories of an image's layers and their bytes together, the lowest first; `stores` in the order they are looked in. */
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
      throw new Error(`layer ${id} of ${image.id} is not there`);
    directories.unshift(layerDirectory(store.directory, id));
    sizeBytes += layer.sizeBytes;
    id = layer.parent;
  }
  return { directories, sizeBytes };
}

export async function readConfig(store: string, image: string): Promise<ImageConfig> {
  const name = `=${Buffer.from(`sha256:${image}`).toString("base64")}`;
  const found = await readJson<{ config?: ImageConfig }>(join(store, "overlay-images", image, name));
  if (!found) throw new Error(`image ${image} has no configuration`);
  return found.config ?? {};
}

async function readJson<T>(file: string): Promise<T | undefined> {
  const text = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return undefined;
    throw error;
  });
  return text === undefined || text.trim() === "" ? undefined : (JSON.parse(text) as T);
}
