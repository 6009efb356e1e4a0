/**
 * The system packages that Kontor uses, as data: how each package is recognised, and why it is needed. A package counts
 * as present if its program exists, whatever its source.
 */

export interface SystemPackage {
  /** Name of the package in Debian. */
  name: string;
  /** Programs, found on PATH and in the sbin directories, or absolute paths. All must exist. */
  provides: readonly string[];
  why: string;
  /**
   * Oldest version that works. The package comes from `<codename>-backports` if the host's own suite has no such
   * version.
   */
  backports?: { atLeast: string };
}

export const serverPackages: readonly SystemPackage[] = [
  {
    name: "runsc",
    provides: ["runsc"],
    why: "boots isolated machines (gVisor)",
    // Debian 12 has a version of 2022, which lacks flags that the driver uses
    backports: { atLeast: "0.0~20240729" },
  },
  { name: "runc", provides: ["runc"], why: "runs deployed applications and build steps" },
  { name: "nftables", provides: ["nft"], why: "keeps machines apart on the network" },
  { name: "iproute2", provides: ["ip"], why: "makes network namespaces" },
  { name: "mmdebstrap", provides: ["mmdebstrap"], why: "makes the root file systems of templates" },
  { name: "buildah", provides: ["buildah"], why: "builds container images" },
  { name: "git", provides: ["git"], why: "fetches and keeps repositories" },
  { name: "openssh-client", provides: ["ssh"], why: "fetches repositories by ssh" },
  {
    name: "e2fsprogs",
    provides: ["mkfs.ext4", "e2fsck", "filefrag"],
    why: "gives machines and volumes disks of a fixed size",
  },
  { name: "mount", provides: ["mount", "losetup"], why: "mounts the machines' disks" },
  {
    name: "util-linux",
    provides: ["unshare", "nsenter", "fstrim", "prlimit"],
    why: "enters and leaves namespaces, trims volumes, bounds git",
  },
  { name: "procps", provides: ["ps", "sysctl"], why: "reads and sets kernel values" },
  {
    name: "ca-certificates",
    provides: ["/etc/ssl/certs/ca-certificates.crt"],
    why: "trusts the package registries",
  },
  { name: "npm", provides: ["npm"], why: "fetches Node for templates" },
  { name: "gcc", provides: ["gcc"], why: "builds the guest program" },
  { name: "libc6-dev", provides: ["/usr/include/stdio.h"], why: "builds the guest program" },
  { name: "make", provides: ["make"], why: "builds the guest program" },
];

export const testPackages: readonly SystemPackage[] = [
  ...serverPackages,
  {
    name: "postgresql-15",
    provides: ["/usr/lib/postgresql/15/bin/initdb"],
    why: "keeps the SQL at the level of the oldest PostgreSQL supported (test only)",
  },
  { name: "redis-tools", provides: ["redis-cli"], why: "asks Redis add-ons as people do (test only)" },
  { name: "openssh-server", provides: ["sshd"], why: "plays a forge that is reached by ssh (test only)" },
  {
    name: "python3-pip",
    provides: ["/usr/lib/python3/dist-packages/pip/__main__.py"],
    why: "says where this host gets its Python packages from (test only)",
  },
  { name: "openssl", provides: ["openssl"], why: "makes a certificate for a forge of the tests (test only)" },
  { name: "curl", provides: ["curl"], why: "calls the API as the README does (test only)" },
  { name: "chromium", provides: ["chromium"], why: "loads previews as a person does (test only)" },
  {
    name: "libnss3-tools",
    provides: ["certutil"],
    why: "has that browser trust an installation (test only)",
  },
  {
    name: "pebble",
    provides: ["pebble", "pebble-challtestsrv"],
    why: "plays a public certificate authority (test only)",
  },
];

/**
 * Packages that `check` needs besides the pinned ones: unit tests of the guest's protocol build the guest program.
 */
export const checkPackages: readonly SystemPackage[] = serverPackages.filter(({ name }) =>
  ["gcc", "libc6-dev", "make", "git"].includes(name),
);
