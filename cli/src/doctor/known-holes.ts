/**
 * Published security holes of the programs that isolate machines and builds: the versions that fix each hole, and
 * whether this product's configuration is exposed to it. Add a row for a new advisory. Versions are upstream versions.
 * Debian backports fixes to an old version and names the CVE in the package's changelog, which is read too.
 */

export type Engine = "runsc" | "runc" | "buildah";

export interface Hole {
  engine: Engine;
  cve: string;
  summary: string;
  /** The first fixed version of each release line; later lines are fixed from the start. */
  fixed: readonly string[];
  source: string;
  /** Way in which a tenant can reach the hole; null if no tenant can. */
  reachedFrom: string | null;
  why: string;
}

/**
 * Fields of a hole in runc that user namespaces close. Apps and build steps run a tenant's commands in runc containers.
 */
const inUserNamespace = {
  reachedFrom: null,
  why: "Apps and steps of builds run in user namespaces that own no file and no setting of the host.",
} as const;

const runcOf2025 = ["1.2.8", "1.3.3", "1.4.0-rc.3"] as const;

export const knownHoles: readonly Hole[] = [
  {
    engine: "runc",
    cve: "CVE-2024-21626",
    summary: "a leaked descriptor leads a container to the host's files",
    fixed: ["1.1.12", "1.2.0-rc.1"],
    source: "https://github.com/opencontainers/runc/security/advisories/GHSA-xr7r-f8xq-vfvv",
    ...inUserNamespace,
  },
  {
    engine: "runc",
    cve: "CVE-2024-45310",
    summary: "a race makes empty files and directories on the host",
    fixed: ["1.1.14", "1.2.0-rc.3"],
    source: "https://github.com/opencontainers/runc/security/advisories/GHSA-jfvp-7x6p-h2pv",
    ...inUserNamespace,
  },
  {
    engine: "runc",
    cve: "CVE-2025-31133",
    summary: "a container that owns /dev/null unmasks /proc and writes kernel settings of the host",
    fixed: runcOf2025,
    source: "https://github.com/opencontainers/runc/security/advisories/GHSA-9493-h29p-rfm2",
    ...inUserNamespace,
  },
  {
    engine: "runc",
    cve: "CVE-2025-52565",
    summary: "a race on /dev/console mounts files of the host over masked paths",
    fixed: runcOf2025,
    source: "https://github.com/opencontainers/runc/security/advisories/GHSA-qw9x-cqr3-wc7r",
    ...inUserNamespace,
  },
  {
    engine: "runc",
    cve: "CVE-2025-52881",
    summary: "redirected writes to /proc bypass security labels and write kernel settings of the host",
    fixed: runcOf2025,
    source: "https://github.com/opencontainers/runc/security/advisories/GHSA-cgrx-mc8f-2prm",
    ...inUserNamespace,
  },
  {
    engine: "runc",
    cve: "CVE-2026-41579",
    summary: "an image whose /dev is a symlink writes a few files on the host",
    fixed: ["1.3.6", "1.4.3", "1.5.0-rc.3"],
    source: "https://github.com/opencontainers/runc/security/advisories/GHSA-xjvp-4fhw-gc47",
    ...inUserNamespace,
  },
  {
    engine: "buildah",
    cve: "CVE-2024-1753",
    summary: "a bind mount whose source is a symlink mounts the host's root",
    fixed: ["1.29.3", "1.31.5", "1.35.1"],
    source: "https://github.com/advisories/GHSA-pmf3-c36m-g5cf",
    reachedFrom: null,
    why: "The server reads every Dockerfile first and refuses mounts whose source lies outside the context.",
  },
  {
    engine: "buildah",
    cve: "CVE-2024-9407",
    summary: "the option bind-propagation of a mount reaches the host",
    fixed: ["1.33.10", "1.37.4"],
    source: "https://github.com/podman-container-tools/buildah/pull/5764",
    reachedFrom: null,
    why: "The server refuses the option when it reads the Dockerfile.",
  },
  {
    engine: "buildah",
    cve: "CVE-2024-9675",
    summary: "a cache mount whose path climbs out mounts a directory of the host",
    fixed: ["1.33.10", "1.37.5"],
    source: "https://github.com/advisories/GHSA-586p-749j-fhwp",
    reachedFrom: null,
    why: "The server refuses such paths when it reads the Dockerfile, and the builder sees no directory of the host.",
  },
  {
    engine: "buildah",
    cve: "CVE-2024-9676",
    summary: "a symlink in an image makes the builder read a file of the host",
    fixed: ["1.33.11", "1.37.5"],
    source: "https://github.com/advisories/GHSA-wq2p-5pc6-wpgf",
    reachedFrom: null,
    why: "The builder runs in a root directory of its own that holds no file of the host.",
  },
  {
    engine: "buildah",
    cve: "CVE-2024-11218",
    summary: "concurrent stages that share a mount reach the builder's own files",
    fixed: ["1.33.12", "1.37.6", "1.38.1"],
    source: "https://github.com/advisories/GHSA-5vpc-35f4-r8w6",
    reachedFrom: null,
    why: "The builder runs in a root directory of its own that holds no file of the host.",
  },
  {
    engine: "runsc",
    cve: "CVE-2025-2713",
    summary: "the first process of a sandbox reads files of the sandbox as root",
    fixed: ["20250319.0"],
    source: "https://osv.dev/vulnerability/CVE-2025-2713",
    reachedFrom: null,
    why: "The first process of a sandbox is the guest program, which is root there anyway.",
  },
  {
    engine: "runsc",
    cve: "CVE-2026-96812",
    summary: "a character device of the host that an image holds leads to root on the host",
    // This version is the weekly release after the advisory; the fix is commit 573a9e73cf844f.
    fixed: ["20260928.0"],
    source: "https://github.com/google/gvisor/commit/573a9e73cf844f",
    reachedFrom: null,
    why: "Images of sandboxes hold no device files (a captured image leaves them out), and volumes are mounted nodev.",
  },
];

/** Numbers of a version, compared from left to right. A pre-release sorts before its release. */
type Version = readonly number[];

const preReleases = ["dev", "alpha", "beta", "rc"];

/**
 * Parses `1.1.5+ds1-1+deb12u1`, `1.4.0~rc.3`, `v1.2.0-rc.1`, and for runsc `release-20250319.0` or
 * `0.0~20240729.0-4~bpo12+2`. Returns undefined if the text contains no version.
 */
export function parseVersion(engine: Engine, text: string): Version | undefined {
  if (engine === "runsc") {
    const [, date, patch] = /(?:^|[-~])(20\d{6})\.(\d+)/.exec(text) ?? [];
    return date === undefined ? undefined : [Number(date), 0, Number(patch)];
  }
  const [, major, minor, patch, stage, count] =
    /^v?(\d+)\.(\d+)\.(\d+)(?:[-~](dev|alpha|beta|rc)\.?(\d*))?/.exec(text) ?? [];
  if (major === undefined) return undefined;
  const isRelease = stage === undefined;
  return [
    ...[major, minor, patch].map(Number),
    isRelease ? preReleases.length : preReleases.indexOf(stage),
    isRelease ? 0 : Number(count),
  ];
}

function isAtLeast(version: Version, other: Version): boolean {
  for (const [index, part] of other.entries()) {
    const own = version[index] ?? 0;
    if (own !== part) return own > part;
  }
  return true;
}

function isFixed({ engine, fixed }: Hole, version: Version): boolean {
  const lines = fixed.map((text) => parseVersion(engine, text) ?? []);
  return lines.some((first, index) => {
    const isLast = index === lines.length - 1;
    const isSameLine = version[0] === first[0] && version[1] === first[1];
    return (isLast || isSameLine) && isAtLeast(version, first);
  });
}

/**
 * Lists the holes of the table in a version of a program; undefined if the version cannot be parsed. `changelog` is the
 * changelog of the distribution's package, if the program has one.
 */
export function holesOf(engine: Engine, version: string, changelog = ""): Hole[] | undefined {
  const parsed = parseVersion(engine, version);
  if (parsed === undefined) return undefined;
  return knownHoles.filter(
    (hole) =>
      hole.engine === engine && !isFixed(hole, parsed) && !new RegExp(`${hole.cve}(?!\\d)`).test(changelog),
  );
}
