/**
 * Makes images ahead of time, if the operator requests it: images of add-ons, and bases of functions and apps.
 * Otherwise the first use of an image makes it, which takes minutes. Images are made one after the other, after the
 * templates of sandboxes.
 */
import type { App } from "#app.ts";
import { siteBase } from "#builds/detection/recipe.ts";
import type { PrepareGroup } from "#config.ts";
import { describeImageFailure } from "#machines/image-failure.ts";
import type { OnImageProgress } from "#machines/images.ts";
import type { Engine } from "./addons/engines/engine.ts";
import { engines } from "./addons/engines/engines.ts";
import { functionBases } from "./functions/deploy/image.ts";

/** Base images of recipes for repositories without a Dockerfile. */
const appBases = [...functionBases, "debian:12-slim", siteBase];

const bases: Readonly<Record<Exclude<PrepareGroup, "addons">, readonly string[]>> = {
  functions: functionBases,
  apps: appBases,
};

export interface PreparedImage {
  name: string;
  groups: PrepareGroup[];
  state: "waiting" | "preparing" | "ready" | "failed";
  fraction: number;
  step: string;
  error: string | null;
}

type Needs = { machines: Pick<App["machines"], "images" | "host"> } & Pick<App, "log">;

export class PreparedImages {
  readonly #app: Needs;
  readonly #images = new Map<string, PreparedImage>();
  readonly #addons: ReadonlySet<string>;

  constructor(app: Needs, groups: readonly PrepareGroup[]) {
    this.#app = app;
    const addons = (Object.values(engines) as Engine[]).map(({ image }) => image);
    this.#addons = new Set(addons);
    for (const group of groups)
      for (const name of group === "addons" ? addons : bases[group]) this.#add(name, group);
  }

  /** Returns the images of the requested groups, in the order in which they are made. */
  status(): PreparedImage[] {
    return [...this.#images.values()];
  }

  /** Makes the missing images. The status shows a failure, and the first use of the image retries. */
  async run(signal: AbortSignal): Promise<void> {
    for (const image of this.#images.values()) {
      if (signal.aborted) return;
      image.state = "preparing";
      const progress: OnImageProgress = ({ fraction, step }) => Object.assign(image, { fraction, step });
      try {
        await this.#make(image.name, progress, signal);
        Object.assign(image, { state: "ready", fraction: 1, step: "ready" });
      } catch (error) {
        Object.assign(image, { state: "failed", error: describeImageFailure(error) });
        if (!signal.aborted)
          this.#app.log.error({ image: image.name, err: error }, "an image could not be prepared");
      }
    }
  }

  async #make(name: string, progress: OnImageProgress, signal: AbortSignal): Promise<void> {
    const { images, host } = this.#app.machines;
    if (this.#addons.has(name)) await images.ensure(name, progress);
    else await host.prepareBase(name, progress, signal);
  }

  #add(name: string, group: PrepareGroup): void {
    const known = this.#images.get(name);
    if (known) known.groups.push(group);
    else
      this.#images.set(name, {
        name,
        groups: [group],
        state: "waiting",
        fraction: 0,
        step: "waiting",
        error: null,
      });
  }
}
