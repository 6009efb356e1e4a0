/** Opens this process's host: its number, its driver, its registration, its share of the database's machines. */
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Logger } from "pino";
import type { Driver } from "@kontor/runtime/driver.ts";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import { LinuxDriver } from "@kontor/runtime/linux/driver.ts";
import type { EgressDoor } from "@kontor/runtime/network/egress.ts";
import { loadRecipes } from "@kontor/runtime/rootfs/recipes.ts";
import { baseUrl, type Config } from "#config.ts";
import type { Db } from "#db/db.ts";
import type { Clock } from "#lib/clock.ts";
import { ensureHostId } from "#lib/host-id.ts";
import { onKillPoint, reached } from "#lib/kill-points.ts";
import { claimInstance } from "./instance.ts";
import { LocalHost } from "./local-host.ts";
import { leaseSeconds, Machines } from "./machines.ts";
import { type Region, regionsOf } from "./regions.ts";
import { registerHost } from "./store.ts";

/** Where restricted machines find the egress proxy, on 10.0.0.1: the port proxies are known by. */
const egressProxyPort = 3128;
const root = fileURLToPath(new URL("../../..", import.meta.url));

export async function openMachines(deps: {
  config: Config;
  db: Db;
  clock: Clock;
  log: Logger;
  /** What serves restricted machines, opened and closed with the host's network; without it they reach nothing. */
  egress?: EgressDoor;
  /** A test's own; that of the configuration where absent. */
  driver?: Driver;
}): Promise<Machines> {
  const { config, db, clock, log, egress } = deps;
  if (config.killAt !== null) {
    onKillPoint(async (point) => void (point === config.killAt && process.kill(process.pid, "SIGKILL")));
  }
  const recipes = await loadRecipes();
  const driver = deps.driver ?? makeDriver(config, log, egress);
  await driver.open();
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
  return new Machines({
    host: new LocalHost({
      id,
      epoch,
      driver,
      recipes,
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
    db,
    clock,
    log,
  });
}

/** A directory that was given may be another installation's as well: below it each host has its own. */
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

function makeDriver(config: Config, log: Logger, egress: EgressDoor | undefined): Driver {
  const stateDir = join(config.dataDir, "machines");
  if (config.runtime === "fake") return new FakeDriver({ directory: stateDir });
  return new LinuxDriver({
    stateDir,
    instance: config.instance ?? claimInstance(config.dataDir),
    uplink: config.uplink,
    dnsServers: config.dnsServers ? [...config.dnsServers] : null,
    proxyPort: egressProxyPort,
    ...(egress === undefined ? {} : { egress }),
    guestBinary: join(root, "guest/build/kontor-guest"),
    shimBinary: join(root, "runtime/shim/build/kontor-shim"),
    runsc: "runsc",
    platform: config.runscPlatform === "kvm" ? "kvm" : "systrap",
    log: (event, fields) => log.debug(fields, event),
    reached,
  });
}
