/** Opens this process's host: its number, its driver, its registration, its share of the database's machines. */
import { randomUUID } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Logger } from "pino";
import type { Driver } from "@kontor/runtime/driver.ts";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import { GvisorDriver } from "@kontor/runtime/gvisor/driver.ts";
import { loadRecipes } from "@kontor/runtime/rootfs/recipes.ts";
import { baseUrl, type Config } from "#config.ts";
import type { Db } from "#db/db.ts";
import type { Clock } from "#lib/clock.ts";
import { claimInstance } from "./instance.ts";
import { LocalHost } from "./local-host.ts";
import { leaseSeconds, Machines } from "./machines.ts";
import { registerHost } from "./store.ts";

const root = fileURLToPath(new URL("../../..", import.meta.url));

export async function openMachines(deps: { config: Config; db: Db; clock: Clock; log: Logger }): Promise<Machines> {
  const { config, db, clock, log } = deps;
  const recipes = await loadRecipes(join(root, "templates"));
  const driver = makeDriver(config, log);
  await driver.open();
  const facts = await driver.facts();
  const id = hostId(config.dataDir);
  const epoch = await db.transaction().execute((tx) =>
    registerHost(tx, {
      id,
      region: config.region,
      regionName: config.regionName,
      address: baseUrl(config),
      leaseSeconds,
      facts,
    }),
  );
  log.info({ host: id, epoch, ...facts }, "host registered");
  return new Machines({
    host: new LocalHost({ id, epoch, driver, recipes, concurrentStarts: Math.max(2, Math.floor(facts.vcpus)) }),
    capacity: {
      memoryBytes: Math.floor(facts.memoryBytes * config.memoryOvercommit),
      vcpus: facts.vcpus * config.cpuOvercommit,
      machines: config.maxMachines,
    },
    poolCeiling: config.poolMax,
    db,
    clock,
    log,
  });
}

function makeDriver(config: Config, log: Logger): Driver {
  const stateDir = join(config.dataDir, "machines");
  if (config.runtime === "fake") return new FakeDriver({ directory: stateDir });
  return new GvisorDriver({
    stateDir,
    imagesDir: join(config.dataDir, "images"),
    recipesDir: join(root, "templates"),
    instance: config.instance ?? claimInstance(config.dataDir),
    uplink: config.uplink,
    dnsServers: config.dnsServers,
    guestBinary: join(root, "guest/build/kontor-guest"),
    shimBinary: join(root, "runtime/shim/build/kontor-shim"),
    platform: config.runscPlatform,
    log,
  });
}

/** A host keeps its id for as long as it keeps its data directory: machines and images on it are found by it. */
function hostId(dataDir: string): string {
  const file = join(dataDir, "host-id");
  try {
    return readFileSync(file, "utf8").trim();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
  mkdirSync(dataDir, { recursive: true });
  const id = `host_${randomUUID()}`;
  writeFileSync(file, `${id}\n`, { mode: 0o600 });
  return id;
}
