/** The `debian` step: mmdebstrap's argv and progress. Pure. */
import type { ImageStep } from "../driver.ts";

/**
 * Files that an image lacks. Leaving them out halves its size, and later installs inside a machine leave them out too.
 * Licences must stay.
 */
const LEFT_OUT = [
  "path-exclude=/usr/share/doc/*",
  "path-include=/usr/share/doc/*/copyright",
  "path-exclude=/usr/share/man/*",
  "path-exclude=/usr/share/info/*",
  "path-exclude=/usr/share/locale/*",
  "path-include=/usr/share/locale/locale.alias",
  "path-exclude=/usr/share/lintian/*",
  "path-exclude=/usr/share/groff/*",
];

/**
 * apt settings of the host that describe how to read its mirror (a mirror of a past day has outdated dates). The image
 * keeps these settings. The image does not keep the host's proxy, which a machine may not reach; the build gets the
 * proxy from the environment.
 */
const KEPT_SETTINGS = ["Acquire::Check-Valid-Until", "Acquire::Check-Date"];

/**
 * Command that runs a build in its own namespaces. The mounts of the build are private and end with it, and the build
 * ends in any case when this process ends. Otherwise, mounts of an interrupted build would keep its directory in use
 * forever (EBUSY).
 */
export const ENCLOSED: readonly string[] =
  "setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child --mount-proc".split(
    " ",
  );

/** Returns the command of mmdebstrap(1). `-`: the sources.list comes from stdin. */
export function mmdebstrapArgv(
  step: Extract<ImageStep, { kind: "debian" }>,
  target: string,
  hostSettings: ReadonlyMap<string, string>,
): string[] {
  const kept = KEPT_SETTINGS.flatMap((key) => {
    const value = hostSettings.get(key);
    return value === undefined ? [] : [`--aptopt=${key} "${value}"`];
  });
  return [
    ...ENCLOSED,
    "mmdebstrap",
    "--mode=root",
    "--variant=minbase",
    "--format=directory",
    "--verbose",
    '--aptopt=APT::Install-Recommends "false"',
    '--aptopt=Acquire::Languages "none"',
    ...kept,
    // An interrupted build is deleted whole, and a machine's root disk needs no fsync either.
    "--dpkgopt=force-unsafe-io",
    ...LEFT_OUT.map((option) => `--dpkgopt=${option}`),
    `--components=${step.components.join(",")}`,
    ...(step.packages.length === 0 ? [] : [`--include=${step.packages.join(",")}`]),
    step.suite,
    target,
    "-",
  ];
}

/** Parses the output of `apt-config dump`: one `Key "value";` a line. */
export function parseAptConfig(text: string): Map<string, string> {
  return new Map(
    [...text.matchAll(/^(\S+) "([^"\n]*)";$/gm)].map(([, key = "", value = ""]) => [key, value]),
  );
}

/** Returns the host's apt proxy, in the variables that apt, curl and npm read. */
export function proxyEnvironment(settings: ReadonlyMap<string, string>): Record<string, string> {
  return Object.fromEntries(
    ["http", "https"].flatMap((scheme) => {
      const proxy = settings.get(`Acquire::${scheme}::Proxy`);
      return proxy === undefined || proxy === "" || proxy === "DIRECT" ? [] : [[`${scheme}_proxy`, proxy]];
    }),
  );
}

/** mmdebstrap's stages, with the fraction of its work at which each stage starts and ends (measured, debian-12). */
const STAGES: readonly { line: string; step: string; from: number; to: number }[] = [
  { line: "running apt-get update", step: "reading package lists", from: 0, to: 0.1 },
  { line: "downloading packages", step: "downloading the base system", from: 0.1, to: 0.25 },
  { line: "extracting archives", step: "unpacking the base system", from: 0.25, to: 0.35 },
  { line: "installing essential", step: "installing the base system", from: 0.35, to: 0.6 },
  { line: "installing remaining", step: "installing packages", from: 0.6, to: 0.95 },
  { line: "cleaning package lists", step: "cleaning up", from: 0.95, to: 1 },
];

/** Returns the fraction of work that is done, from output as it arrives. The fraction never decreases. */
export class DebianProgress {
  #rest = "";
  #stage = STAGES[0];
  #packages = 0;
  #done = 0;

  read(text: string): { fraction: number; step: string } {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const line of lines) this.#readLine(line);
    const { from, to, step } = this.#stage ?? { from: 0, to: 0, step: "" };
    const share = this.#packages === 0 ? 0 : Math.min(this.#done / this.#packages, 1);
    return { fraction: from + (to - from) * share, step };
  }

  #readLine(line: string): void {
    const stage = line.startsWith("I: ") ? STAGES.find((each) => line.includes(each.line)) : undefined;
    if (stage !== undefined) {
      this.#stage = stage;
      this.#done = 0;
    }
    const planned = /(\d+) newly installed/.exec(line)?.[1];
    if (planned !== undefined) this.#packages = Number(planned);
    // Each package prints one of these lines in both stages: download and installation.
    if (/^(Get:|Setting up )/.test(line)) this.#done += 1;
  }
}
