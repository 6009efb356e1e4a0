/**
 * Finds the resources of an installation on its host: directories, mounts, network, control groups, and the settings
 * that the set-up wrote. Changes nothing.
 */
import { existsSync, lstatSync, readdirSync, readFileSync, readlinkSync, realpathSync } from "node:fs";
import path from "node:path";
import { instanceNames } from "@kontor/runtime/network/addresses.ts";
import type { Config } from "@kontor/server/config.ts";
import { socketDirectory } from "@kontor/server/db/embedded/files.ts";
import { externalBlobs, isBelow, ownMounts, unescapeOctal, volumesDirectories } from "../backup/places.ts";
import { Failure } from "../lib/failure.ts";
import { backportsFile } from "../setup/apt.ts";
import { keptLimits } from "../setup/host-limits.ts";

/** Paths outside of the data directory. Tests set their own paths. */
export interface HostPlaces {
  /**
   * Directory of the claims of instance numbers, and of the files that machines have while the host is up
   * (runtime/src/linux/paths.ts).
   */
  run: string;
  namespaces: string;
  links: string;
  /** Files that the set-up wrote, shared by all installations of the host. */
  settings: readonly string[];
  /** Data directory of an installation without a setting for it. */
  usualData: string;
}

export const hostPlaces: HostPlaces = {
  run: "/run/kontor",
  namespaces: "/run/netns",
  links: "/sys/class/net",
  settings: [keptLimits, backportsFile],
  usualData: "/var/lib/kontor",
};

export interface Traces {
  dataDir: string;
  /** Instance number. Undefined if no server has run here since the host started. */
  instance: number | undefined;
  /** Directories to remove with their content; the data directory is not among them. */
  directories: string[];
  /** Network namespaces and interfaces. */
  namespaces: string[];
  links: string[];
  /** Paths of leases of user ranges. */
  leases: string[];
  settings: string[];
  /** Resources of the installation that stay, each with the reason. */
  kept: string[];
}

export function findTraces(
  config: Config,
  options: { keepSettings?: boolean; places?: HostPlaces } = {},
): Traces {
  const { dataDir } = config;
  const places = options.places ?? hostPlaces;
  refuseForeign(dataDir);
  const instance = findInstance(config, places);
  const hostId = readHostId(dataDir);
  const volumes = hostId === undefined ? [] : [...volumesDirectories(config, hostId).values()];
  const runDirectories = [
    socketDirectory(path.join(dataDir, "postgres")),
    ...(instance === undefined ? [] : [path.join(places.run, String(instance))]),
  ];
  const others = otherInstallations(dataDir, places);
  const prefix = instance === undefined ? undefined : instanceNames(instance).interfacePrefix;
  const ofInstance = (directory: string) =>
    list(directory).filter((name) => prefix && name.startsWith(prefix));
  const removesSettings = !options.keepSettings && others.length === 0;
  return {
    dataDir,
    instance,
    directories: [...runDirectories, ...volumes.filter((directory) => !isBelow(directory, dataDir))].filter(
      isThere,
    ),
    namespaces: ofInstance(places.namespaces),
    links: ofInstance(places.links),
    leases: leasesOf(instance, places),
    settings: removesSettings ? places.settings.filter(isThere) : [],
    kept: keptThings(config, removesSettings ? [] : places.settings.filter(isThere), others),
  };
}

/** Refuses a directory that is not Kontor's, and a directory with foreign content. */
function refuseForeign(dataDir: string): void {
  if (readHostId(dataDir) === undefined) {
    throw new Failure(`There is no installation in ${dataDir}.`, {
      hint: "Name its data directory: kontor uninstall --data DIR.",
    });
  }
  const root = realpathSync(dataDir);
  const product = realpathSync(path.join(import.meta.dirname, "../../.."));
  if (isBelow(product, root)) {
    throw new Failure(`Kontor itself is in ${root}, which would be removed with it.`, {
      hint: `Move ${product} elsewhere, and run this again there.`,
    });
  }
  const [foreign] = foreignMounts(root, readFileSync("/proc/self/mountinfo", "utf8"));
  if (foreign === undefined) return;
  throw new Failure(`${foreign} is a mount that Kontor did not make.`, {
    hint: "Unmount it, and run this again. The content of the disk stays.",
  });
}

/**
 * Returns mount points strictly below the data directory that Kontor did not make: a disk or a bind mount of the
 * operator.
 */
export function foreignMounts(root: string, mountinfo: string): string[] {
  const own = new Set(ownMounts(root, mountinfo).map((name) => path.join(root, name)));
  return mountPoints(mountinfo)
    .filter((place) => place !== root && isBelow(place, root) && !own.has(place))
    .filter((place) => !isInternal(path.relative(root, place)));
}

/** True for directories in which an operator mounts nothing. */
const isInternal = (name: string) => /^(machines\/(machines|roots|mount-points)|oci|work)\/./.test(name);

export function mountPoints(mountinfo: string): string[] {
  return mountinfo
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => unescapeOctal(line.split(" ")[4] ?? ""));
}

/**
 * Returns the instance number of the installation's machines, network and groups. A claim of another installation is
 * refused, because the number may come from the environment of this shell.
 */
export function findInstance(
  { dataDir, instance, runtime }: Pick<Config, "dataDir" | "instance" | "runtime">,
  { run }: Pick<HostPlaces, "run">,
): number | undefined {
  if (runtime === "fake") return undefined;
  const claims = claimsOf(run);
  if (instance === null) return claims.find((claim) => claim.dataDir === dataDir)?.instance;
  const other = claims.find((claim) => claim.instance === instance && claim.dataDir !== dataDir);
  if (other === undefined) return instance;
  throw new Failure(`KONTOR_INSTANCE is ${instance}, which is the number of ${other.dataDir}.`, {
    hint: "Set KONTOR_INSTANCE as the server of this data directory had it, or unset it.",
  });
}

function claimsOf(run: string): { instance: number; dataDir: string }[] {
  const directory = path.join(run, "instances");
  return list(directory)
    .filter((name) => /^\d+$/.test(name))
    .map((name) => ({
      instance: Number(name),
      dataDir: readFileSync(path.join(directory, name), "utf8"),
    }));
}

function otherInstallations(dataDir: string, { run, usualData }: HostPlaces): string[] {
  const directories = [...claimsOf(run).map((claim) => claim.dataDir), usualData];
  return [...new Set(directories)].filter((other) => other !== dataDir && readHostId(other) !== undefined);
}

/**
 * Returns the leases of an installation. A lease is a symlink to the run directory of a machine
 * (runtime/src/runc/users.ts).
 */
function leasesOf(instance: number | undefined, { run }: HostPlaces): string[] {
  if (instance === undefined) return [];
  const directory = path.join(run, "users");
  const own = path.join(run, String(instance));
  return list(directory)
    .map((name) => path.join(directory, name))
    .filter((lease) => isBelow(readTarget(lease), own));
}

function keptThings(config: Config, settings: readonly string[], others: readonly string[]): string[] {
  const { databaseUrl, backupsStore, backupsS3Bucket } = config;
  const blobs = externalBlobs(config);
  const forOthers = others.length === 0 ? "--keep-settings" : `used by ${others.join(", ")}`;
  return [
    ...(blobs === null ? [] : [`${blobs}: backups of add-ons`]),
    ...(backupsStore === "s3" ? [`the bucket ${backupsS3Bucket}: backups of add-ons`] : []),
    ...(databaseUrl === null
      ? []
      : ["the database of KONTOR_DATABASE_URL: drop the schemas public and graphile_worker yourself"]),
    ...settings.map((file) => `${file}: ${forOthers}`),
  ];
}

function readHostId(dataDir: string): string | undefined {
  try {
    const text = readFileSync(path.join(dataDir, "host-id"), "utf8").trim();
    return /^[A-Za-z0-9_]+$/.test(text) ? text : undefined;
  } catch {
    return undefined;
  }
}

function readTarget(link: string): string {
  try {
    return readlinkSync(link);
  } catch {
    return "";
  }
}

function isThere(place: string): boolean {
  return lstatSync(place, { throwIfNoEntry: false }) !== undefined;
}

function list(directory: string): string[] {
  return existsSync(directory) ? readdirSync(directory) : [];
}
