/** Opens this process's host: its number, driver, registration and share of the database's machines. */
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Logger } from "pino";
import type { Driver, ImageRecipe } from "@kontor/runtime/driver.ts";
import { FakeBuilder } from "@kontor/runtime/fake/builder.ts";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import { LinuxDriver } from "@kontor/runtime/linux/driver.ts";
import type { EgressServices } from "@kontor/runtime/network/egress.ts";
import { type AppBuilder, OciBuilder } from "@kontor/runtime/oci/builder.ts";
import { hostPackageSources, noSources } from "@kontor/runtime/oci/bases/registries.ts";
import { Images } from "@kontor/runtime/rootfs/images.ts";
import { ADDON_RECIPES, BASE_RECIPES, loadRecipes } from "@kontor/runtime/rootfs/recipes.ts";
import { baseUrl, type Config } from "#config.ts";
import type { Db } from "#schema.ts";
import type { Clock } from "#lib/clock.ts";
import { ensureHostId } from "#lib/host-id.ts";
import { onKillPoint, passKillPoint } from "#lib/kill-points.ts";
import type { Denials } from "./denials.ts";
import { claimHostSlot } from "./host/host-slot.ts";
import { LocalHost } from "./host/local-host.ts";
import { HostMachines, leaseSeconds } from "./host-machines.ts";
import type { MachineEgress, Machines } from "./machines.ts";
import { type Region, regionsOf } from "#lib/regions.ts";
import { neededRuntimeBuilds, registerHost } from "./store.ts";

/** Port of the egress proxy for restricted machines, on 10.0.0.1; 3128 is the usual port of proxies. */
const egressProxyPort = 3128;
const root = fileURLToPath(new URL("../../..", import.meta.url));
const shimBinary = join(root, "runtime/shim/build/kontor-shim");

export async function openMachines(deps: {
  config: Config;
  db: Db;
  clock: Clock;
  log: Logger;
  /**
   * Egress proxy and resolver for restricted machines, opened and closed with the host's network. If absent, restricted
   * machines reach nothing.
   */
  egress?: EgressServices & MachineEgress;
  /** Record that `egress` writes to. */
  denials?: Denials;
  /** Driver of a test; default: the configured one. */
  driver?: Driver;
  /** Builder of a test; default: the configured one. */
  builder?: AppBuilder;
}): Promise<Machines> {
  const { config, db, clock, log, egress } = deps;
  const { killFile } = config;
  if (killFile !== null) {
    onKillPoint(async (point) => {
      // The file is usually absent, and a measurement also covers this check.
      if (!existsSync(killFile)) return;
      if ((await readFile(killFile, "utf8").catch(() => "")) === point) process.kill(process.pid, "SIGKILL");
    });
  }
  const recipes = await loadRecipes();
  const instance = config.runtime === "fake" ? 0 : (config.instance ?? claimHostSlot(config.dataDir));
  const driver = deps.driver ?? makeDriver(config, instance, log, egress);
  const builder = deps.builder ?? (await makeBuilder(config, instance, driver, recipes, log));
  await driver.open();
  await builder.open();
  await driver.pruneRuntimes(await neededRuntimeBuilds(db));
  const facts = await driver.facts();
  const id = ensureHostId(config.dataDir);
  const regions = regionsOf(config);
  const epoch = await db.transaction().execute((tx) =>
    registerHost(tx, {
      id,
      regions,
      address: baseUrl(config),
      leaseSeconds,
      facts,
    }),
  );
  log.info({ host: id, epoch, ...facts }, "host registered");
  return new HostMachines({
    egress,
    denials: deps.denials,
    host: new LocalHost({
      id,
      epoch,
      driver,
      builder,
      scansDirectory: join(config.dataDir, "scans"),
      packageSources: config.runtime === "fake" ? noSources : await hostPackageSources(),
      recipes,
      innerRecipes: await loadRecipes(ADDON_RECIPES, recipes),
      snapshotsDirectory: join(config.dataDir, "snapshots"),
      volumesDirectories: volumesDirectories(config.dataDir, regions, id),
      diskReserveBytes: config.diskReserveGb * 1024 ** 3,
      concurrentStarts: Math.max(2, Math.floor(facts.vcpus)),
    }),
    capacity: {
      memoryBytes: Math.floor(facts.memoryBytes * config.memoryOvercommit),
      vcpus: facts.vcpus * config.cpuOvercommit,
      machines: config.maxMachines,
      diskReserveBytes: config.diskReserveGb * 1024 ** 3,
    },
    poolCeiling: config.poolMax,
    suspensionGraceSeconds: config.suspensionGraceSeconds,
    logsDirectory: join(config.dataDir, "logs"),
    db,
    clock,
    log,
  });
}

/**
 * A configured directory may be shared with other installations, so each host has its own directory below it.
 */
function volumesDirectories(
  dataDir: string,
  regions: readonly Region[],
  hostId: string,
): ReadonlyMap<string, string> {
  return new Map(
    regions.map(({ code, directory }) => [
      code,
      directory === null ? join(dataDir, "volumes", code) : join(directory, hostId),
    ]),
  );
}

function stateDirectory(config: Config): string {
  return join(config.dataDir, "machines");
}

async function makeBuilder(
  config: Config,
  instance: number,
  driver: Driver,
  templates: readonly ImageRecipe[],
  log: Logger,
): Promise<AppBuilder> {
  if (config.runtime === "fake") return new FakeBuilder();
  const recipes = [...templates, ...(await loadRecipes(BASE_RECIPES, templates))];
  const images = new Images({ directory: join(stateDirectory(config), "images") });
  return new OciBuilder({
    directory: join(config.dataDir, "oci"),
    cgroupParent: `kontor${instance}-builds`,
    instance,
    shimBinary,
    engines: { buildah: config.buildahPath, runc: config.runcPath },
    recipes: new Map(recipes.map((recipe) => [recipe.name, recipe])),
    base: async (recipe, progress) => {
      const image = await driver.ensureImage(recipe, progress);
      return { image, rootfs: images.rootfsPath(image.id) };
    },
    network: () => driver.lendNetwork("open"),
    cacheBytes: config.buildCacheGb * 1024 ** 3,
    log: (event, fields) => log.debug(fields, event),
  });
}

function makeDriver(
  config: Config,
  instance: number,
  log: Logger,
  egress: EgressServices | undefined,
): Driver {
  const stateDir = stateDirectory(config);
  if (config.runtime === "fake") return new FakeDriver({ directory: stateDir });
  return new LinuxDriver({
    stateDir,
    instance,
    uplink: config.uplink,
    dnsServers: config.dnsServers ? [...config.dnsServers] : null,
    proxyPort: egressProxyPort,
    ...(egress === undefined ? {} : { egress }),
    guestBinary: join(root, "guest/build/kontor-guest"),
    shimBinary,
    runsc: config.runscPath ?? "runsc",
    runc: config.runcPath ?? "runc",
    platform: config.runscPlatform === "kvm" ? "kvm" : "systrap",
    log: (event, fields) => log.debug(fields, event),
    reached: passKillPoint,
  });
}
