/**
 * Builds images without content, for fast tests. The last instructions of the Dockerfile configure the image,
 * and `RUN false` fails.
 */
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { RuntimeError } from "../driver.ts";
import type { AppBuild, AppBuilder, BuildHooks, BuiltLayers, ImageImport } from "../oci/builder.ts";
import { readDockerfile } from "../oci/dockerfile/dockerfile.ts";
import type { ImageConfig } from "../oci/store.ts";

export class FakeBuilder implements AppBuilder {
  readonly #images = new Set<string>();
  /** Awaited in every build, for a test that must act during the build. */
  during: (build: AppBuild, hooks: BuildHooks) => Promise<void> = async () => {};

  async open(): Promise<void> {}

  async close(): Promise<void> {}

  async build(build: AppBuild, hooks: BuildHooks): Promise<BuiltLayers> {
    const { log, signal } = hooks;
    const lines = readDockerfile(build.dockerfile).text.trim().split("\n");
    await this.during(build, hooks);
    for (const [index, line] of lines.entries()) {
      if (signal.aborted) throw new RuntimeError("interrupted", "the build was aborted");
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
        User: last("USER") ?? "",
        Env: lines.flatMap((line) => (line.startsWith("ENV ") ? [line.slice("ENV ".length)] : [])),
        ...(port === undefined ? {} : { ExposedPorts: { [`${port}/tcp`]: {} } }),
      },
    };
  }

  /** Reads the image's configuration, and does not unpack its layers. */
  async importImage({ id, directory }: ImageImport): Promise<BuiltLayers> {
    const manifest = await readFile(join(directory, "manifest.json"));
    const { config } = JSON.parse(manifest.toString()) as { config: { digest: string } };
    const text = await readFile(join(directory, config.digest.replace("sha256:", "")), "utf8");
    const digest = `sha256:${createHash("sha256").update(manifest).digest("hex")}`;
    this.#images.add(id);
    return {
      digest,
      layers: [],
      sizeBytes: 1024 ** 2,
      config: (JSON.parse(text) as { config?: ImageConfig }).config ?? {},
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
