/**
 * Root file systems of this host. Each root file system is made once, in the background or on the first request, and
 * concurrent requests share one build. A failed build is remembered with its reason, and the next request tries again.
 */
import type { Progress } from "@kontor/runtime/driver.ts";
import type { Logger } from "pino";
import type { Db } from "#schema.ts";
import { templateFailed, templatePreparing } from "./errors.ts";
import type { Host, HostImage } from "./host/host.ts";
import { describeImageFailure } from "./image-failure.ts";
import { saveImage } from "./store.ts";

/** Receives the progress of an image that is made. */
export type OnImageProgress = Progress;

export interface ImageStatus {
  name: string;
  state: "absent" | "preparing" | "ready" | "failed";
  fraction: number;
  step: string;
  error: string | null;
  image: HostImage | null;
}

export class HostImages {
  readonly #host: Host;
  readonly #db: Db;
  readonly #log: Logger;
  readonly #status = new Map<string, ImageStatus>();
  /** Images that callers cannot request by name. */
  readonly #inner: ReadonlySet<string>;
  readonly #building = new Map<string, Promise<HostImage>>();
  readonly #listeners = new Map<string, Set<Progress>>();

  constructor(deps: { host: Host; db: Db; log: Logger }) {
    this.#host = deps.host;
    this.#db = deps.db;
    this.#log = deps.log;
    this.#inner = new Set(deps.host.innerImageNames());
    for (const name of [...deps.host.imageNames(), ...this.#inner]) this.#status.set(name, absent(name));
  }

  status(): ImageStatus[] {
    return [...this.#status.values()].filter(({ name }) => this.has(name));
  }

  /** True if callers may request the image. */
  has(name: string): boolean {
    return this.#status.has(name) && !this.#inner.has(name);
  }

  find(name: string): ImageStatus | undefined {
    return this.#status.get(name);
  }

  /** Returns the image. Builds a missing image, waits up to `waitMs`, and then fails with the progress so far. */
  async ready(name: string, waitMs: number): Promise<HostImage> {
    const made = this.#status.get(name)?.image;
    if (made) return made;
    const building = this.ensure(name);
    // The build continues without this caller; its failure is in the status.
    building.catch(() => {});
    const image = await Promise.race([building, delay(waitMs)]).catch((error: unknown) => {
      throw templateFailed(name, sentence(error));
    });
    if (image) return image;
    throw templatePreparing(name, this.#status.get(name) ?? absent(name));
  }

  /**
   * Returns the image of that name. Builds a missing image; concurrent callers share one build. An id of an image built
   * from a machine or a Dockerfile is only looked up. `progress` is called at once, and with each change until the
   * image is made.
   */
  async ensure(name: string, progress?: Progress): Promise<HostImage> {
    const made = this.#status.get(name)?.image;
    if (made) return made;
    if (!this.#status.has(name)) return this.#built(name);
    const build = this.#building.get(name) ?? this.#begin(name);
    if (progress === undefined) return build;
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners.add(progress));
    progress(this.#status.get(name) ?? absent(name));
    try {
      return await build;
    } finally {
      listeners.delete(progress);
      if (listeners.size === 0) this.#listeners.delete(name);
    }
  }

  #begin(name: string): Promise<HostImage> {
    const build = this.#make(name).finally(() => this.#building.delete(name));
    this.#building.set(name, build);
    return build;
  }

  async #built(id: string): Promise<HostImage> {
    const image = await this.#host.findImage(id);
    if (!image) throw new Error(`this host has no image ${id}`);
    return image;
  }

  async #make(name: string): Promise<HostImage> {
    const startedAt = Date.now();
    this.#set(name, { state: "preparing", fraction: 0, step: "starting", error: null });
    try {
      const image = await this.#host.ensureImage(name, ({ fraction, step }) =>
        this.#set(name, { fraction, step }),
      );
      await this.#save(name, "ready", image, null);
      this.#set(name, { state: "ready", fraction: 1, step: "ready", image });
      this.#log.info({ template: name, ms: Date.now() - startedAt, ...image }, "template ready");
      return image;
    } catch (error) {
      this.#set(name, { state: "failed", error: describeImageFailure(error) });
      this.#log.error({ template: name, err: error }, "template could not be made");
      await this.#save(name, "failed", null, sentence(error));
      throw error;
    }
  }

  #save(
    name: string,
    state: "ready" | "failed",
    image: HostImage | null,
    error: string | null,
  ): Promise<void> {
    return saveImage(this.#db, {
      host_id: this.#host.id,
      name,
      state,
      image_id: image?.id ?? null,
      contents: image?.contents ?? {},
      substituted: image?.substituted ?? false,
      size_bytes: image?.sizeBytes ?? null,
      error,
    });
  }

  #set(name: string, change: Partial<ImageStatus>): void {
    const status = { ...(this.#status.get(name) ?? absent(name)), ...change };
    this.#status.set(name, status);
    for (const tell of this.#listeners.get(name) ?? []) tell(status);
  }
}

function absent(name: string): ImageStatus {
  return { name, state: "absent", fraction: 0, step: "waiting", error: null, image: null };
}

function sentence(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function delay(ms: number): Promise<undefined> {
  return new Promise((resolve) => setTimeout(() => resolve(undefined), ms).unref());
}
