/** An app for tests of the sandbox API: a real database, the fake driver, a fixed clock, and a user. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import type { ImageRecipe } from "@kontor/runtime/driver.ts";
import { FakeBuilder } from "@kontor/runtime/fake/builder.ts";
import { FakeDriver, type FakeOptions } from "@kontor/runtime/fake/driver.ts";
import { noSources } from "@kontor/runtime/oci/bases/registries.ts";
import type { Actor } from "#accounts/actor.ts";
import type { SandboxTier } from "#accounts/roles.ts";
import type { App } from "#app.ts";
import type { ConfigKey } from "#config.ts";
import { Builds } from "#builds/run.ts";
import type { Db } from "#schema.ts";
import { LocalHost } from "#machines/host/local-host.ts";
import { HostMachines } from "#machines/host-machines.ts";
import type { MachineEgress } from "#machines/machines.ts";
import { regionsOf } from "#lib/regions.ts";
import { registerHost } from "#machines/store.ts";
import { makePerson, type Person } from "../../../test/factories.ts";
import { silentLog, type TestClock, testClock, testConfig, testSecrets } from "../../../test/harness.ts";
import { protocol } from "../code/interpreter.ts";
import { moveSandboxDeadlines } from "../sandboxes/lifecycle/expire.ts";
import { sandboxOwner } from "../sandboxes/machine-events/machine-owner.ts";
import { templateBuilds } from "../templates/finish.ts";
import { repairVolumes } from "../volumes/repair.ts";
import { SandboxCreate } from "../sandboxes/schema.ts";

const hostId = "host_test";

/** The app without jobs, which the operations of a sandbox do not use. */
type SandboxApp = Omit<App, "jobs">;

export interface TestHost {
  app: SandboxApp;
  driver: FakeDriver;
  builds: Builds;
  clock: TestClock;
  /** Directory of the machines and their snapshots. */
  directory: string;
  /** Ends the server, and starts another one on the same database and machines. */
  restart(whileAway?: (driver: FakeDriver) => Promise<void>): Promise<void>;
}

const recipe: ImageRecipe = {
  name: "debian-12",
  promise: { debian: "12" },
  ways: [{ steps: [], substitute: false }],
  env: {},
  probes: {},
};

/** Image with a substituted version. For any other image, the fake driver reports the promised version. */
const substitute: ImageRecipe = {
  ...recipe,
  name: "python-3.12",
  promise: { python: "3.13.5" },
  ways: [{ steps: [], substitute: true }],
};

/** An image with a service, which the test imitates. */
const interpreter: ImageRecipe = {
  ...recipe,
  name: "code-interpreter",
  service: { speaks: protocol, argv: ["none"], port: 49_982 },
};

export async function testHost(
  db: Db,
  options: {
    config?: Partial<Record<ConfigKey, string>>;
    poolCeiling?: number;
    capacity?: { machines: number };
    services?: FakeOptions["services"];
    egress?: MachineEgress;
  } = {},
): Promise<TestHost> {
  const directory = await mkdtemp(join(tmpdir(), "kontor-fake-"));
  afterAll(() => rm(directory, { recursive: true, force: true }));
  const clock = testClock();
  const config = testConfig({ dataDir: join(directory, "data"), ...options.config });
  const secrets = testSecrets();
  const start = async (): Promise<Pick<TestHost, "app" | "driver" | "builds">> => {
    const { services } = options;
    const driver = new FakeDriver({ directory, ...(services ? { services } : {}) });
    await driver.open();
    const facts = await driver.facts();
    const regions = regionsOf(config);
    const epoch = await db.transaction().execute((tx) =>
      registerHost(tx, {
        id: hostId,
        regions,
        address: "http://127.0.0.1:8080",
        leaseSeconds: 15,
        facts,
      }),
    );
    const machines = new HostMachines({
      egress: options.egress,
      host: new LocalHost({
        id: hostId,
        epoch,
        driver,
        builder: new FakeBuilder(),
        scansDirectory: join(directory, "scans"),
        packageSources: noSources,
        recipes: [recipe, substitute, interpreter],
        concurrentStarts: 4,
        snapshotsDirectory: join(directory, "snapshots"),
        volumesDirectories: new Map(regions.map(({ code }) => [code, join(directory, "volumes", code)])),
        diskReserveBytes: 0,
      }),
      capacity: {
        memoryBytes: 1024 ** 4,
        vcpus: 1000,
        machines: 100,
        diskReserveBytes: 1,
        ...options.capacity,
      },
      poolCeiling: options.poolCeiling ?? 0,
      suspensionGraceSeconds: config.suspensionGraceSeconds,
      logsDirectory: join(directory, "logs"),
      db,
      clock,
      log: silentLog,
    });
    const app: SandboxApp = { config, db, machines, secrets, clock, log: silentLog };
    await machines.images.ensure(recipe.name);
    const builds = new Builds(app, { template: templateBuilds(app) });
    machines.suspension.onRelease(moveSandboxDeadlines);
    await machines.start(app as App, {
      sandbox: sandboxOwner(app),
      build: builds.machineOwner,
      app: { onServerStart: async () => {}, ended: async () => {} },
    });
    await repairVolumes(app);
    return { app, driver, builds };
  };
  const host: TestHost = {
    ...(await start()),
    clock,
    directory,
    restart: async (whileAway) => {
      await host.app.machines.close();
      if (whileAway) {
        const driver = new FakeDriver({ directory });
        await driver.open();
        await whileAway(driver);
        await driver.close();
      }
      Object.assign(host, await start());
    },
  };
  afterAll(async () => {
    for (const { id } of await host.driver.list()) await host.driver.remove(id);
    await host.app.machines.close();
  });
  return host;
}

export async function personWithTier(db: Db, tier: SandboxTier): Promise<Person & { actor: Actor }> {
  const person = await makePerson(db, { workspace: { sandbox_tier: tier } });
  return { ...person, actor: actorOf(person) };
}

/** Returns the actor of a full-access token of this user. */
function actorOf({ user, workspace }: Person): Actor {
  return {
    kind: "api_token",
    id: "tok_test",
    label: user.email,
    role: null,
    userId: user.id,
    scopes: null,
    tokenId: "tok_test",
    workspaces: [
      {
        id: workspace.id,
        kind: "personal",
        role: "owner",
        plan: workspace.plan,
        sandboxTier: workspace.sandbox_tier,
        suspended: workspace.suspended_at !== null,
      },
    ],
    ip: null,
  };
}

/** Returns the body of a create after validation, with defaults. */
export function createInput(input: Record<string, unknown> = {}): SandboxCreate {
  return SandboxCreate.parse({ template: recipe.name, ...input });
}
