/** A builder with its own stores, for host tests. */
import { mkdtempSync } from "node:fs";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect } from "vitest";
import type { LentNetwork, RuntimeError } from "../../driver.ts";
import { run } from "../../exec.ts";
import { loadRecipes } from "../../rootfs/recipes.ts";
import { testImage } from "../../rootfs/testing/image.ts";
import { type AppBuild, type BuilderOptions, OciBuilder } from "../builder.ts";
import { noSources } from "../bases/registries.ts";
import { readStore } from "../store.ts";

export const TEST_INSTANCE = 60;
const shimFolder = join(import.meta.dirname, "../../../shim");
export const shimBinary = join(shimFolder, "build/kontor-shim");
let makes = 0;

export function makeTestBuilds(
  network: (() => Promise<LentNetwork>) | null,
  engines?: BuilderOptions["engines"],
) {
  const directory = mkdtempSync(join(tmpdir(), "kontor-oci-"));
  const oci = join(directory, "oci");
  const checkout = join(directory, "checkout");
  const cgroupParent = `kontor-test-${process.pid}-${(makes += 1)}-builds`;
  let count = 0;
  let opened: OciBuilder | undefined;

  async function openBuilder(): Promise<OciBuilder> {
    const { images } = await testImage();
    opened = new OciBuilder({
      directory: oci,
      cgroupParent,
      instance: TEST_INSTANCE,
      shimBinary,
      ...(engines ? { engines } : {}),
      recipes: new Map((await loadRecipes()).map((recipe) => [recipe.name, recipe])),
      base: async (recipe) => {
        const image = await images.ensure(recipe);
        return { image, rootfs: images.rootfsPath(image.id) };
      },
      network,
      cacheBytes: 10 * 1024 ** 3,
      log: () => {},
    });
    await opened.open();
    return opened;
  }

  const builds = {
    directory,
    oci,
    checkout,

    get builder(): OciBuilder {
      if (opened === undefined) throw new Error("the builder is not open");
      return opened;
    },

    /** Imports the base once, so that no test waits for it. */
    open: async (): Promise<void> => {
      await run(["make", "-C", shimFolder], { timeoutMs: 120_000 });
      await openBuilder();
      await builds.clearCheckout();
      await builds.built("FROM debian:12-slim\nRUN true\n");
    },

    restart: async (): Promise<void> => {
      await builds.builder.close();
      await openBuilder();
    },

    close: async (): Promise<void> => {
      await opened?.close();
      await rm(directory, { recursive: true, force: true });
    },

    clearCheckout: async (): Promise<void> => {
      await rm(checkout, { recursive: true, force: true });
      await mkdir(checkout);
      await writeFile(join(checkout, "hello.txt"), "hello\n");
    },

    /** Runs a build. Returns the log, and the image or the error. */
    build: async (
      dockerfile: string,
      more: Partial<AppBuild> & { signal?: AbortSignal; onLog?: (text: string) => void } = {},
    ) => {
      const { signal = new AbortController().signal, onLog, ...rest } = more;
      const id = `app_t${(count += 1)}`;
      let log = "";
      const write = (text: string) => {
        log += text;
        onLog?.(log);
      };
      try {
        const image = await builds.builder.build(
          {
            id,
            workspace: "one",
            checkout,
            context: ".",
            dockerfile,
            secrets: {},
            sources: noSources,
            memoryBytes: 1024 ** 3,
            vcpus: 2,
            diskBytes: 2 * 1024 ** 3,
            timeoutMs: 90_000,
            ...rest,
          },
          { log: write, signal },
        );
        return { id, log, image };
      } catch (error) {
        return { id, log, error: error as RuntimeError };
      }
    },

    built: async (dockerfile: string, more: Partial<AppBuild> = {}) => {
      const { id, log, image, error } = await builds.build(dockerfile, more);
      if (!image) throw new Error(`${error?.message}\n${log}`, { cause: error });
      return { id, log, image };
    },

    storeOf: (workspace = "one") => readStore(join(oci, "workspaces", workspace, "store")),

    /** Asserts that no process runs and that no mount, group, container or directory is left. */
    expectNothingLeft: async (): Promise<void> => {
      expect(await readdir(join(oci, "builds"))).toEqual([]);
      const containers = await readFile(
        join(oci, "workspaces/one/store/overlay-containers/containers.json"),
        "utf8",
      ).catch(() => "[]");
      expect(JSON.parse(containers)).toEqual([]);
      expect(await readFile("/proc/self/mountinfo", "utf8")).not.toContain(oci);
      const { stdout } = await run(["find", "/sys/fs/cgroup", "-path", `*${cgroupParent}/*`, "-type", "d"], {
        okCodes: [0, 1],
      });
      expect(stdout).toBe("");
    },
  };
  return builds;
}
