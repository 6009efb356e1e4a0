/**
 * Runs the steps of a recipe on an unfinished root filesystem. Each step gets the directory from the steps
 * before it, and reports its progress. A failure reports the step, its last lines, and a cure.
 */
import { createHash } from "node:crypto";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { RuntimeError, type ImageStep, type Progress } from "../driver.ts";
import { run } from "../exec.ts";
import { DebianProgress, mmdebstrapArgv, parseAptConfig, proxyEnvironment } from "./debian.ts";
import { hostMirrors, sourcesList } from "./sources.ts";
import { npmEnvironment } from "./trust.ts";

export interface StepContext {
  rootfs: string;
  progress: Progress;
  /** Returns the path of another image's root filesystem. Builds that image first if it is missing. */
  baseRootfs: (name: string, progress: Progress) => Promise<string>;
}

type StepOf<Kind extends ImageStep["kind"]> = Extract<ImageStep, { kind: Kind }>;

interface StepKind<Kind extends ImageStep["kind"]> {
  /** Share of the build's time, relative to the other steps. */
  weight: number;
  label: (step: StepOf<Kind>) => string;
  advice: string;
  make: (step: StepOf<Kind>, context: StepContext) => Promise<void>;
}

/**
 * Limit of mmdebstrap's silence. mmdebstrap prints a line for each package, so the limit does not depend on the speed
 * of the host.
 */
const DEBIAN_QUIET_MS = 15 * 60_000;
const DEBIAN_TIMEOUT_MS = 2 * 3_600_000;
/** Timeout of npm, which prints nothing while it works. A host at ten times its load takes ten times as long. */
const NPM_TIMEOUT_MS = 30 * 60_000;
const COPY_TIMEOUT_MS = 3_600_000;
const RUN_TIMEOUT_MS = 30 * 60_000;

const KINDS: { [Kind in ImageStep["kind"]]: StepKind<Kind> } = {
  debian: {
    weight: 20,
    label: (step) => `Debian ${step.suite}`,
    advice: "Check that `apt-get update` works on this host and that its mirror carries this suite.",
    async make(step, { rootfs, progress }) {
      const settings = parseAptConfig((await run(["apt-config", "dump"])).stdout);
      const reader = new DebianProgress();
      await run(mmdebstrapArgv(step, rootfs, settings), {
        stdin: sourcesList(await hostMirrors(), step.suite, step.components),
        timeoutMs: DEBIAN_TIMEOUT_MS,
        quietMs: DEBIAN_QUIET_MS,
        env: {
          ...process.env,
          ...proxyEnvironment(settings),
          DEBIAN_FRONTEND: "noninteractive",
          LC_ALL: "C.UTF-8",
        },
        onOutput: (text) => progress(reader.read(text)),
      });
    },
  },
  image: {
    weight: 4,
    label: (step) => `copy of ${step.name}`,
    advice: "Check that the disk has room for another copy.",
    async make(step, { rootfs, progress, baseRootfs }) {
      const base = await baseRootfs(step.name, ({ fraction, step }) =>
        progress({ fraction: fraction * 0.9, step }),
      );
      progress({ fraction: 0.9, step: `copying ${step.name}` });
      await run(["cp", "-a", "--reflink=auto", `${base}/.`, rootfs], { timeoutMs: COPY_TIMEOUT_MS });
    },
  },
  npm: {
    weight: 4,
    label: (step) => `npm package ${step.package}@${step.version}`,
    advice: "Check that `npm ping` works on this host and that its registry carries this version.",
    make: installNpmPackage,
  },
  files: {
    weight: 0.1,
    label: (step) => `files for ${step.into}`,
    advice: "Check that the disk has room.",
    async make(step, { rootfs }) {
      for (const [name, content] of Object.entries(step.contents ?? {})) {
        const target = path.join(rootfs, step.into, name);
        await mkdir(path.dirname(target), { recursive: true });
        await writeFile(target, content, { mode: 0o644 });
      }
    },
  },
  "npm-ci": {
    weight: 4,
    label: (step) => `npm packages of ${step.directory}`,
    advice:
      "Check that `npm ping` works on this host and that its registry carries the packages of the lockfile.",
    async make(step, { rootfs }) {
      // Uses the host's npm and its configuration, verifies the lockfile's hashes, and runs no script.
      await run(["npm", "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund"], {
        cwd: path.join(rootfs, step.directory),
        timeoutMs: NPM_TIMEOUT_MS,
        env: npmEnvironment(),
      });
    },
  },
  run: {
    weight: 1,
    label: (step) => `running ${step.argv.join(" ")}`,
    advice: "Run the command in a machine made from the steps before it to find the cause.",
    async make(step, { rootfs }) {
      await runInside(rootfs, step.argv);
    },
  },
};

const SLOW = "If it does, the host or its network is too busy: the next request tries again.";

/** Runs all steps in order. `fraction` grows from 0 to 1. */
export async function makeSteps(steps: readonly ImageStep[], context: StepContext): Promise<void> {
  const weights = steps.map((step) => KINDS[step.kind].weight);
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  let before = 0;
  for (const [index, step] of steps.entries()) {
    const weight = weights[index] ?? 0;
    // The table has the right kind under each name; TypeScript cannot infer this through a union.
    const kind = KINDS[step.kind] as StepKind<ImageStep["kind"]>;
    const label = kind.label(step);
    const progress: Progress = (inner) =>
      context.progress({ fraction: (before + weight * inner.fraction) / total, step: inner.step });
    progress({ fraction: 0, step: label });
    try {
      await kind.make(step, { ...context, progress });
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      const isLate = error instanceof RuntimeError && error.kind === "timeout";
      const advice = isLate ? `${kind.advice} ${SLOW}` : kind.advice;
      throw new RuntimeError("image_failed", `step ${index + 1} (${label}) failed: ${why}. ${advice}`, {
        cause: error,
      });
    }
    before += weight;
  }
}

/**
 * Runs a command in the image, without network, processes and mounts of the host. The program comes from an
 * archive with a verified signature, so this prevents accidents, not attacks.
 */
export async function runInside(rootfs: string, argv: readonly string[]): Promise<string> {
  const unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts"];
  const { stdout, stderr } = await run(
    [...unshare, `--mount-proc=${rootfs}/proc`, "chroot", rootfs, ...argv],
    {
      timeoutMs: RUN_TIMEOUT_MS,
      env: { PATH: IMAGE_PATH, HOME: "/root", LC_ALL: "C.UTF-8", DEBIAN_FRONTEND: "noninteractive" },
    },
  );
  return stdout === "" ? stderr : stdout;
}

export const IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/**
 * Installs a package. Downloads it with the host's npm and its configuration, verifies the registry's integrity value,
 * and runs no script.
 */
async function installNpmPackage(step: StepOf<"npm">, { rootfs, progress }: StepContext): Promise<void> {
  const wanted = `${step.package}@${step.version}`;
  const directory = await mkdtemp(path.join(os.tmpdir(), "kontor-npm-"));
  try {
    const options = { cwd: directory, timeoutMs: NPM_TIMEOUT_MS, env: npmEnvironment() };
    const { stdout } = await run(["npm", "view", wanted, "dist.integrity", "--json"], options);
    progress({ fraction: 0.1, step: `downloading ${wanted}` });
    await run(["npm", "pack", wanted, "--ignore-scripts", "--silent"], options);
    const [archive] = await readdir(directory);
    if (archive === undefined) throw new Error("npm pack left no archive");
    progress({ fraction: 0.7, step: `unpacking ${wanted}` });
    const file = path.join(directory, archive);
    checkIntegrity(await readFile(file), String(JSON.parse(stdout)));
    const target = path.join(rootfs, step.into);
    await mkdir(target, { recursive: true });
    const chosen = step.paths.map((name) => `package/${name}`);
    await run(["tar", "-xzf", file, "-C", target, "--strip-components=1", "--no-same-owner", ...chosen], {
      timeoutMs: NPM_TIMEOUT_MS,
    });
    for (const [link, to] of Object.entries(step.links ?? {})) {
      await mkdir(path.join(rootfs, path.dirname(link)), { recursive: true });
      await symlink(to, path.join(rootfs, link));
    }
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

/** Throws unless the content has the integrity value: subresource integrity in npm's format, `<algorithm>-<base64>`. */
export function checkIntegrity(content: Buffer, integrity: string): void {
  const [, algorithm = "", digest = ""] = /^(sha256|sha384|sha512)-([A-Za-z0-9+/=]+)$/.exec(integrity) ?? [];
  if (algorithm === "")
    throw new Error(`the registry gives no integrity value of a known kind ("${integrity}")`);
  if (createHash(algorithm).update(content).digest("base64") !== digest) {
    throw new Error(`the download does not match the registry's integrity value (${integrity})`);
  }
}
