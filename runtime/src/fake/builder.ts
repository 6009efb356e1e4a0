/** Builds images of nothing: the Dockerfile's last words are what an image runs, and `RUN false` fails. For fast tests. */
import { createHash } from "node:crypto";
import { RuntimeError } from "../driver.ts";
import type { AppBuild, AppBuilder, BuildHooks, BuiltLayers } from "../oci/builder.ts";
import { readDockerfile } from "../oci/dockerfile.ts";

export class FakeBuilder implements AppBuilder {
  readonly #images = new Set<string>();
  /** Awaited in every build, for a test that wants to come in between. */
  during: (build: AppBuild, hooks: BuildHooks) => Promise<void> = async () => {};

  async open(): Promise<void> {}

  async close(): Promise<void> {}

  async build(build: AppBuild, hooks: BuildHooks): Promise<BuiltLayers> {
    const { log, signal } = hooks;
    const lines = readDockerfile(build.dockerfile).text.trim().split("\n");
    await this.during(build, hooks);
    for (const [index, line] of lines.entries()) {
      if (signal.aborted) throw new RuntimeError("interrupted", "the build was ended");
      log(`STEP ${index + 1}/${lines.length}: ${line}\n`);
      if (line === "RUN false") throw new RuntimeError("image_failed", `"${line}" exited with 1`);
    }
    const last = (keyword: string) =>
      lines.findLast((line) => line.startsWith(`${keyword} `))?.slice(keyword.length + 1);
    const port = last("EXPOSE");
    this.#images.add(build.id);
    return {
      digest: `sha256:${createHash("sha256").update(build.id).digest("hex")}`,
      layers: [],
      sizeBytes: 1024 ** 2,
      config: {
        Cmd: JSON.parse(last("CMD") ?? '["true"]') as string[],
        WorkingDir: last("WORKDIR") ?? "",
        ...(port === undefined ? {} : { ExposedPorts: { [`${port}/tcp`]: {} } }),
      },
    };
  }

  async prepareBase(): Promise<void> {}

  async images(): Promise<string[]> {
    return [...this.#images];
  }

  async layers(id: string): Promise<string[] | undefined> {
    return this.#images.has(id) ? [] : undefined;
  }

  async remove(id: string): Promise<void> {
    this.#images.delete(id);
  }

  async prune(): Promise<void> {}
}
