/** The `debian` step: mmdebstrap's argv and progress, pure. */
import type { ImageStep } from "../driver.ts";

/**
 * What an image does without: it halves the size, and what is installed into a machine later leaves it out as well.
 * Licences stay, as they must.
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
 * apt settings of the host that tell how its mirror is to be read (a mirror of a past day has outdated dates), and so
 * go into the image too. Its proxy does not: a machine may not reach it; the build gets it from the environment.
 */
const KEPT_SETTINGS = ["Acquire::Check-Valid-Until", "Acquire::Check-Date"];

/**
 * A build of its own: its mounts are seen by nobody else and end with it, and it ends when this process does, however
 * that is. Mounts of a build that was cut off would otherwise hold its folder for ever (EBUSY).
 */
export const ENCLOSED: readonly string[] =
  "setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child --mount-proc".split(
    " ",
  );

/** mmdebstrap(1); `-`: the sources.list comes from stdin. */
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
    // A build that is cut off is thrown away whole, and a machine's root disk has no use for fsync either.
    "--dpkgopt=force-unsafe-io",
    ...LEFT_OUT.map((option) => `--dpkgopt=${option}`),
    `--components=${step.components.join(",")}`,
    ...(step.packages.length === 0 ? [] : [`--include=${step.packages.join(",")}`]),
    step.suite,
    target,
    "-",
  ];
}

/** `apt-config dump`: one `Key "value";` a line. */
export function parseAptConfig(text: string): Map<string, string> {
  return new Map(
    [...text.matchAll(/^(\S+) "([^"\n]*)";$/gm)].map(([, key = "", value = ""]) => [key, value]),
  );
}

/** The host's apt proxy as the variables apt, curl and npm all read. */
export function proxyEnvironment(settings: ReadonlyMap<string, string>): Record<string, string> {
  return Object.fromEntries(
    ["http", "https"].flatMap((scheme) => {
      const proxy = settings.get(`Acquire::${scheme}::Proxy`);
      return proxy === undefined || proxy === "" || proxy === "DIRECT" ? [] : [[`${scheme}_proxy`, proxy]];
    }),
  );
}

/** mmdebstrap's own stages, and where in the whole of its work each begins and ends (measured, debian-12). */
const STAGES: readonly { line: string; step: string; from: number; to: number }[] = [
  { line: "running apt-get update", step: "reading package lists", from: 0, to: 0.1 },
  { line: "downloading packages", step: "downloading the base system", from: 0.1, to: 0.25 },
  { line: "extracting archives", step: "unpacking the base system", from: 0.25, to: 0.35 },
  { line: "installing essential", step: "installing the base system", from: 0.35, to: 0.6 },
  { line: "installing remaining", step: "installing packages", from: 0.6, to: 0.95 },
  { line: "cleaning package lists", step: "cleaning up", from: 0.95, to: 1 },
];

/** Feed it the output as it comes; it answers how far the work is, never going back. */
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
    // One of these a package in each of the stages: downloading, and installing.
    if (/^(Get:|Setting up )/.test(line)) this.#done += 1;
  }
}
