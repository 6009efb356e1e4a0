/**
 * Arguments and configuration of buildah, as text (buildah-bud(1), containers.conf(5), containers-storage.conf(5)).
 * Paths are those inside the builder's enclosure. Pure.
 */

import { stepSystemCallFilter } from "../runc/system-calls.ts";

/**
 * System call filter of every step, in the build's directory. `bud` ignores `seccomp_profile` of
 * containers.conf.
 */
const SYSTEM_CALLS = "seccomp.json";

/** Paths inside the enclosure. */
export const inside = {
  /** The store of the bases; read-only except during their own import. */
  bases: "/bases",
  /** The workspace's store and its caches. */
  store: "/store",
  caches: "/caches",
  context: "/context",
  /** The build's own directory: configuration, Dockerfile, secrets, and the id of the result. */
  build: "/build",
  /** Programs that the operator configured. */
  engines: "/engines",
} as const;

/** Capabilities of a step: Docker's fourteen without those for raw sockets, device nodes and the audit log. */
const capabilities = [
  "CHOWN",
  "DAC_OVERRIDE",
  "FOWNER",
  "FSETID",
  "KILL",
  "NET_BIND_SERVICE",
  "SETFCAP",
  "SETGID",
  "SETPCAP",
  "SETUID",
  "SYS_CHROOT",
] as const;

export interface StepLimits {
  /** Size limit of a file in bytes; a process that writes more gets SIGXFSZ. */
  fileBytes: number;
  processes: number;
  /** Limit of open files: at most this process's hard limit, which may be below the usual limit. */
  openFiles: number;
}

/** Returns the files that buildah reads instead of the host's configuration: by name, in the build's directory. */
export function configuration(limits: StepLimits): Record<string, string> {
  const list = (words: readonly string[]) => `[${words.map((word) => JSON.stringify(word)).join(", ")}]`;
  const ulimits = [
    `nofile=${limits.openFiles}:${limits.openFiles}`,
    `nproc=${limits.processes}:${limits.processes}`,
    `fsize=${limits.fileBytes}:${limits.fileBytes}`,
    "core=0:0",
  ];
  return {
    "containers.conf": `[containers]
default_capabilities = ${list(capabilities)}
default_ulimits = ${list(ulimits)}
pids_limit = 0
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
`,
    // Image names are never completed to a registry, and none of the host's registries is configured.
    "registries.conf": `unqualified-search-registries = []\nshort-name-mode = "disabled"\n`,
    "storage.conf": storageConf(inside.store, [inside.bases]),
    "bases.conf": storageConf(inside.bases, []),
    "policy.json": `{"default":[{"type":"insecureAcceptAnything"}]}\n`,
    [SYSTEM_CALLS]: JSON.stringify(stepSystemCallFilter(process.arch)),
    // No build gets credentials of the host.
    "auth.json": "{}\n",
  };
}

function storageConf(root: string, additional: readonly string[]): string {
  const stores = additional.map((store) => JSON.stringify(store)).join(", ");
  return `[storage]
driver = "overlay"
graphroot = "${root}"
runroot = "/run/storage"
[storage.options]
additionalimagestores = [${stores}]
`;
}

/** Returns the whole environment of the builder. */
export function environment(storage: "storage.conf" | "bases.conf"): Record<string, string> {
  return {
    // Programs that the operator configured come first.
    PATH: "/engines:/usr/sbin:/usr/bin:/sbin:/bin",
    HOME: "/root",
    // The builder is root of a user namespace already. Without this variable, containers/storage would mount like the
    // host's root.
    _CONTAINERS_USERNS_CONFIGURED: "done",
    _CONTAINERS_ROOTLESS_UID: "0",
    _CONTAINERS_ROOTLESS_GID: "0",
    LC_ALL: "C.UTF-8",
    // Directory of the cache mounts.
    TMPDIR: inside.caches,
    CONTAINERS_CONF: `${inside.build}/containers.conf`,
    CONTAINERS_STORAGE_CONF: `${inside.build}/${storage}`,
    CONTAINERS_REGISTRIES_CONF: `${inside.build}/registries.conf`,
    REGISTRY_AUTH_FILE: `${inside.build}/auth.json`,
  };
}

export interface Bud {
  /** Image name in the Dockerfile → image in a store. */
  contexts: ReadonlyMap<string, string>;
  /** Network that the builder shares with its steps. Null: only a loopback interface. */
  network: { resolver: string } | null;
  /** Path or name of the OCI runtime that runs the steps. */
  runtime: string;
  /** Name of the image. */
  name: string;
  /** Ids of secrets, which are files of the same name in the build's directory. */
  secrets: readonly string[];
  /** True for a base: writes to the store of the bases, and keeps no cache for later builds. */
  isBase?: boolean;
}

export function budArgv(bud: Bud): string[] {
  return [
    "buildah",
    "bud",
    // The image of a base has no dates, so that its digest depends only on its content.
    ...(bud.isBase ? ["--timestamp=0"] : ["--layers"]),
    // Steps share the builder's user namespace and its read-only view of its control group.
    "--isolation=rootless",
    "--cgroupns=host",
    "--network=host",
    `--security-opt=seccomp=${inside.build}/${SYSTEM_CALLS}`,
    // The runtime is a path, because buildah searches its own list of directories for a name before PATH.
    `--runtime=${bud.runtime}`,
    "--runtime-flag=root=/run/runc",
    "--pull-never",
    "--format=oci",
    `--signature-policy=${inside.build}/policy.json`,
    ...(bud.network === null ? [] : [`--dns=${bud.network.resolver}`]),
    ...Array.from(bud.contexts, ([name, image]) => `--build-context=${name}=docker-image://${image}`),
    ...bud.secrets.map((id) => `--secret=id=${id},src=${inside.build}/${id}`),
    `--ignorefile=${inside.build}/ignore`,
    `--iidfile=${inside.build}/iid`,
    `--tag=${bud.name}`,
    `--file=${inside.build}/Dockerfile`,
    inside.context,
  ];
}

/** Returns the command that pulls an image. The command fails if no registry has the image, or if none is reachable. */
export function pullArgv(name: string): string[] {
  return [
    "buildah",
    "pull",
    "--quiet",
    "--retry=0",
    `--signature-policy=${inside.build}/policy.json`,
    `--authfile=${inside.build}/auth.json`,
    `docker://${name}`,
  ];
}

/**
 * Command that imports an image of the `dir:` transport (containers-transports(5)). The store keeps the digest of its
 * manifest.
 */
export const importArgv: readonly string[] = [
  "buildah",
  "pull",
  "--quiet",
  `--signature-policy=${inside.build}/policy.json`,
  `dir:${inside.context}`,
];

/** Name that some versions of buildah give to an imported image: the directory's path. buildah 1.28 gives no name. */
export const importedName = `localhost${inside.context}:latest`;

export function tagArgv(image: string, name: string): string[] {
  return ["buildah", "tag", image, name];
}

export const removeContainersArgv: readonly string[] = ["buildah", "rm", "--all"];

export function removeImagesArgv(ids: readonly string[]): string[] {
  return ["buildah", "rmi", "--force", "--", ...ids];
}

/**
 * Returns an ignore file with patterns that are left out of the context, whatever the repository's own file contains:
 * the last patterns win.
 */
export function ignoreFile(own: string): string {
  return `${own.trimEnd()}\n**/.git\n`;
}
