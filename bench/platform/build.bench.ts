/**
 * Builds of the image of an Express app: a first build with downloaded packages, a build after a change of the source,
 * and an unchanged build. For comparison, bare `buildah bud` builds the same Dockerfile on the same bases, without its
 * own root directory, group or network.
 */
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { run as runProgram } from "@kontor/runtime/exec.ts";
import { HostNetwork } from "@kontor/runtime/network/network.ts";
import { OciBuilder } from "@kontor/runtime/oci/builder.ts";
import { noSources } from "@kontor/runtime/oci/bases/registries.ts";
import { Images } from "@kontor/runtime/rootfs/images.ts";
import { loadRecipes } from "@kontor/runtime/rootfs/recipes.ts";
import { analyze } from "@kontor/server/builds/detection/detection.ts";
import { recipeOf } from "@kontor/server/builds/detection/recipe.ts";
import { directoryTree } from "@kontor/server/builds/detection/tree.ts";
import type { BenchContext } from "../support/contract.ts";
import { imagesOf } from "../support/images.ts";
import { percentile, measureTime } from "../support/measure.ts";

export const name = "build";

const app = fileURLToPath(new URL("../../e2e/apps/express", import.meta.url));
const shimBinary = fileURLToPath(new URL("../../runtime/shim/build/kontor-shim", import.meta.url));
const rounds = 5;
/** Instance number, from the range for programs that use the runtime without a server. */
const instance = 60;
const signal = new AbortController().signal;

export async function run(context: BenchContext): Promise<void> {
  const { dataDirectory } = context;
  const directory = mkdtempSync(join(tmpdir(), "kontor-bench-build-"));
  const checkout = join(directory, "checkout");
  cpSync(app, checkout, { recursive: true });
  const analysis = await analyze(directoryTree(checkout));
  const dockerfile = analysis && recipeOf(analysis);
  if (!dockerfile) throw new Error("the app is not recognised");
  const network = new HostNetwork({ instance, uplink: null, dnsServers: null, proxyPort: 3128 });
  await network.open();
  const images = new Images({ directory: imagesOf(dataDirectory) });
  let slot = 0;
  const builder = new OciBuilder({
    directory: join(directory, "oci"),
    cgroupParent: `kontor-bench-${process.pid}-builds`,
    instance,
    shimBinary,
    recipes: new Map((await loadRecipes()).map((recipe) => [recipe.name, recipe])),
    base: async (recipe) => {
      const image = await images.ensure(recipe);
      return { image, rootfs: images.rootfsPath(image.id) };
    },
    network: async () => {
      const taken = (slot += 1);
      const { netnsPath } = await network.attach(taken, "open");
      return { netnsPath, resolver: "10.0.0.1", release: () => network.detach(taken) };
    },
    cacheBytes: Number.POSITIVE_INFINITY,
    log: () => {},
  });
  let count = 0;
  const build = async (text: string, workspace = "bench") => {
    const { ms } = await measureTime(() =>
      builder.build(
        {
          id: `app_bench${(count += 1)}`,
          workspace,
          checkout,
          context: ".",
          dockerfile: text,
          secrets: {},
          sources: noSources,
          memoryBytes: 4 * 1024 ** 3,
          vcpus: 2,
          diskBytes: 10 * 1024 ** 3,
          timeoutMs: 10 * 60_000,
        },
        { log: () => {}, signal },
      ),
    );
    return ms;
  };
  const change = () => writeFileSync(join(checkout, "changed.txt"), `${count}\n`);
  try {
    await builder.open();
    context.progress("importing the base");
    await build("FROM node:22-slim\nRUN true\n");
    context.progress("the first build");
    context.report({
      what: "Express app, first build",
      value: await build(dockerfile),
      unit: "ms",
      bar: { atMost: 30_000 },
    });
    const cases = [
      { what: "its source changed", prepare: change },
      { what: "nothing changed", prepare: () => {} },
    ];
    for (const { what, prepare } of cases) {
      const samples: number[] = [];
      for (let round = 0; round < rounds; round += 1) {
        context.progress(`${what}, ${round + 1} of ${rounds}`);
        prepare();
        samples.push(await build(dockerfile));
      }
      const value = percentile(samples, 50);
      context.report({ what: `Express app, ${what}, p50`, value, unit: "ms", samples, note: `n=${rounds}` });
    }
    const samples: number[] = [];
    for (let round = 0; round < rounds; round += 1) {
      context.progress(`bare buildah, ${round + 1} of ${rounds}`);
      change();
      samples.push(await bare(join(directory, "oci"), checkout, dockerfile));
    }
    const value = percentile(samples.slice(1), 50);
    const note = `n=${rounds - 1}, the first is not counted`;
    context.report({
      what: "the same by bare buildah bud, its source changed, p50",
      value,
      unit: "ms",
      samples,
      note,
    });
  } finally {
    await builder.close();
    await network.close({ removeAll: true });
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Builds with bare buildah: on the host's own network, with a store beside the bases. Returns the milliseconds. */
async function bare(oci: string, checkout: string, dockerfile: string): Promise<number> {
  const home = join(oci, "bare");
  writeFileSync(join(oci, "Dockerfile"), dockerfile);
  writeFileSync(
    join(oci, "bare.conf"),
    `[storage]\ndriver = "overlay"\ngraphroot = "${home}/store"\nrunroot = "${home}/run"\n[storage.options]\nadditionalimagestores = ["${oci}/bases/store"]\n`,
  );
  writeFileSync(
    join(oci, "containers.conf"),
    '[containers]\ndefault_ulimits = ["nofile=4096:4096","nproc=4096:4096"]\n',
  );
  const { stdout } = await runProgram(
    ["buildah", "images", "--format", "{{.Name}}:{{.Tag}}", "--noheading"],
    {
      env: bareEnvironment(oci),
    },
  );
  const base = stdout.split("\n").find((line) => line.includes("base:node-22"));
  if (!base) throw new Error("the base is not there");
  const argv = [
    "buildah",
    "bud",
    "--layers",
    "--isolation=oci",
    "--runtime=runc",
    "--network=host",
    "--pull-never",
  ];
  const context = `--build-context=node:22-slim=docker-image://${base}`;
  const { ms } = await measureTime(() =>
    runProgram([...argv, context, `--file=${oci}/Dockerfile`, checkout], {
      env: bareEnvironment(oci),
      timeoutMs: 10 * 60_000,
    }),
  );
  return ms;
}

function bareEnvironment(oci: string): NodeJS.ProcessEnv {
  return {
    ...process.env,
    CONTAINERS_STORAGE_CONF: join(oci, "bare.conf"),
    CONTAINERS_CONF: join(oci, "containers.conf"),
    TMPDIR: oci,
  };
}
