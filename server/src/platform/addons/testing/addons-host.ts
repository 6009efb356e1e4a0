/**
 * Add-ons on a real database and the fake driver. The engine is simulated: an ordinary process of this host that
 * listens, with a file in its volume. Host tests run the real engines.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { ConfigKey } from "#config.ts";
import type { Db } from "#schema.ts";
import { systemClock } from "#lib/clock.ts";
import { openMachines } from "#machines/open.ts";
import { silentLog, testConfig, testSecrets } from "../../../../test/harness.ts";
import { freePort } from "../../apps/testing/apps-host.ts";
import { makeProject } from "../../testing/platform-app.ts";
import { Addons } from "../addons.ts";
import { createAddon } from "../create.ts";
import type { Engine, Room } from "../engines/engine.ts";
import { engines } from "../engines/engines.ts";
import { EngineFailure } from "../errors.ts";
import { AddonCreate } from "../schema.ts";

export interface AddonsHost {
  app: Omit<App, "jobs">;
  addons: Addons;
  driver: FakeDriver;
  simulation: SimulatedEngine;
  /** Stops the server and starts another. The processes of the fake driver are lost. */
  restart(): Promise<void>;
}

/** Behaviour of the simulated engine, set by the test. */
interface SimulatedEngine {
  room: Room;
  heeded: Room[];
  admitted: string[];
  /** True if the last prepared instance was a throwaway instance. */
  wasThrowaway: boolean;
  failsNextStart: string | undefined;
  /** Functions that are awaited before the process is prepared, and during each probe. */
  during: { prepare?: () => Promise<void>; answer?: () => Promise<void> };
}

const file = "/persist/simulation";

async function simulateEngine(engine: Engine, simulation: SimulatedEngine): Promise<Engine> {
  const port = await freePort();
  // The machines of this driver share the host's network, so several processes may listen on a port at once. A process
  // that a restart lost ends with its test.
  const program = `
    require("node:net").createServer((s) => s.end()).listen({ port: ${port}, host: "127.0.0.1", reusePort: true });
    const begunBy = process.ppid;
    setInterval(() => process.ppid === begunBy || process.exit(), 500);`;
  return {
    ...engine,
    port,
    command: {
      argv: [process.execPath, "-e", program],
      user: String(process.getuid?.() ?? 0),
      cwd: "/",
    },
    stopSignal: constants.signals.SIGTERM,
    async prepare(guest, { isMade, isThrowaway = false }) {
      simulation.wasThrowaway = isThrowaway;
      const failure = simulation.failsNextStart;
      simulation.failsNextStart = undefined;
      await simulation.during.prepare?.();
      if (failure !== undefined) throw new EngineFailure(failure);
      const there = await guest.stat(file);
      if (isMade && !there) throw new EngineFailure("the database's files are not in the volume");
      if (!there) await guest.writeFile(file, Buffer.from("made"), { mode: 0o600, roots: ["/persist"] });
      return simulation.room;
    },
    async health() {
      await simulation.during.answer?.();
      return simulation.room;
    },
    async onDiskChange(_guest, room) {
      simulation.heeded.push(room);
    },
    async ensureAccess(_guest, { username }) {
      simulation.admitted.push(username);
    },
  };
}

export async function addonsHost(
  db: Db,
  settings: Partial<Record<ConfigKey, string>> = {},
): Promise<AddonsHost> {
  const directory = await mkdtemp(join(tmpdir(), "kontor-addons-"));
  afterAll(() => rm(directory, { recursive: true, force: true }));
  const first = await freePort();
  const overrides = {
    cpuOvercommit: "100",
    memoryOvercommit: "10",
    regions: "eu-1=Here,us-1=There",
    addonsPorts: `${first}-${first + 2}`,
    ...settings,
  };
  const config = { ...testConfig(overrides), dataDir: directory };
  const secrets = testSecrets();
  const simulation: SimulatedEngine = {
    room: { isFull: false, freeBytes: 1e9 },
    heeded: [],
    admitted: [],
    wasThrowaway: false,
    failsNextStart: undefined,
    during: {},
  };
  const kinds = {
    postgres: await simulateEngine(engines.postgres, simulation),
    redis: await simulateEngine(engines.redis, simulation),
  };
  const start = async () => {
    const driver = new FakeDriver({ directory: join(directory, "machines") });
    const machines = await openMachines({ config, db, clock: systemClock, log: silentLog, driver });
    const app = { config, db, machines, secrets, clock: systemClock, log: silentLog };
    const addons = new Addons(app, kinds, { lookEveryMs: 500 });
    await machines.start(app as App, { addon: addons.machineOwner });
    await addons.start();
    return { app, addons, driver };
  };
  const host: AddonsHost = {
    ...(await start()),
    simulation,
    restart: async () => {
      await host.addons.close();
      await host.app.machines.close();
      Object.assign(host, await start());
    },
  };
  afterAll(async () => {
    await host.addons.close();
    for (const { id } of await host.driver.list()) await host.driver.remove(id);
    await host.app.machines.close();
  });
  return host;
}

/** Creates a project in the actor's workspace. */
export async function projectOf(host: AddonsHost, actor: Actor) {
  return makeProject(host.app, actor, { region: "us-1" });
}

export function make(host: AddonsHost, actor: Actor, projectId: string, input: Record<string, unknown>) {
  return createAddon(host.addons, actor, projectId, AddonCreate.parse(input));
}
