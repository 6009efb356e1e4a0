/**
 * Functions on a real database and the fake driver. Their processes run on this host, with the same wrapper program as
 * in a machine. Snapshots of the fake driver contain files and no process, so tests of the real runtime cover wakes
 * from disk.
 */
import { randomBytes } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import type { App } from "#app.ts";
import type { ConfigKey } from "#config.ts";
import type { Db } from "#schema.ts";
import { systemClock } from "#lib/clock.ts";
import { openMachines } from "#machines/open.ts";
import { makePerson } from "../../../../test/factories.ts";
import { silentLog, testConfig, testSecrets } from "../../../../test/harness.ts";
import { freePort } from "../../apps/testing/apps-host.ts";
import { FunctionInstances } from "../instances.ts";
import type { Launch } from "../launch.ts";
import type { VersionRow } from "../store.ts";
import { wrappers } from "./wrapper.ts";

export interface InstancesHost {
  app: Omit<App, "jobs">;
  instances: FunctionInstances;
  driver: FakeDriver;
  image: string;
  /** Replaces the server without a shutdown. The processes of the fake driver are lost. */
  restart(): Promise<void>;
}

const recipe = {
  name: "function-base",
  promise: {},
  ways: [{ steps: [], substitute: false }],
  env: {},
  probes: {},
};

export async function instancesHost(
  db: Db,
  options: { config?: Partial<Record<ConfigKey, string>> } = {},
): Promise<InstancesHost> {
  const directory = await mkdtemp(join(tmpdir(), "kontor-functions-"));
  afterAll(() => rm(directory, { recursive: true, force: true }));
  const overrides = { cpuOvercommit: "100", memoryOvercommit: "10", ...options.config };
  const config = { ...testConfig(overrides), dataDir: directory };
  const secrets = testSecrets();
  const start = async (): Promise<Pick<InstancesHost, "app" | "instances" | "driver" | "image">> => {
    const driver = new FakeDriver({ directory: join(directory, "machines") });
    const log = silentLog;
    const machines = await openMachines({ config, db, clock: systemClock, log, driver });
    const { id: image } = await driver.ensureImage(recipe);
    const app = { config, db, machines, secrets, clock: systemClock, log };
    const instances = new FunctionInstances(app, { launch: hostLaunch(db, directory) });
    await machines.start(app as App, { function: instances.machineOwner });
    await instances.start();
    return { app, instances, driver, image };
  };
  const host: InstancesHost = {
    ...(await start()),
    restart: async () => {
      await host.instances.close();
      await host.app.machines.close();
      Object.assign(host, await start());
    },
  };
  afterAll(async () => {
    await host.instances.close();
    for (const { id } of await host.driver.list()) await host.driver.remove(id);
    await host.app.machines.close();
  });
  return host;
}

/** Returns a function that launches a version's process on this host, with its handler in `directory`. */
export const hostLaunch =
  (db: Db, directory: string) =>
  async (version: { id: string; runtime: "nodejs" | "python" }): Promise<Launch> => {
    const { runtime, handler_code } = await db
      .selectFrom("function_versions")
      .select(["runtime", "handler_code"])
      .where("id", "=", version.id)
      .executeTakeFirstOrThrow();
    const extension = runtime === "nodejs" ? "mjs" : "py";
    const handler = join(directory, `${version.id}.${extension}`);
    await writeFile(handler, handler_code);
    const program = runtime === "nodejs" ? process.execPath : "python3";
    return {
      argv: [program, join(wrappers, runtime, `main.${extension}`)],
      env: { KONTOR_HANDLER: handler, PYTHONDONTWRITEBYTECODE: "1" },
      port: await freePort(),
      cwd: "/",
    };
  };

export interface TestFunction {
  id: string;
  name: string;
  workspaceId: string;
}

/** Creates a function without a version. */
export async function makeFunction(
  db: Db,
  input: {
    plan?: "starter" | "pro" | "team";
    idle_timeout_seconds?: number;
    timeout_seconds?: number;
    memory_mb?: number;
  } = {},
): Promise<TestFunction> {
  const { plan = "team", ...columns } = input;
  const { workspace } = await makePerson(db, { workspace: { plan } });
  const region = await db.selectFrom("regions").select("code").executeTakeFirstOrThrow();
  const row = await db
    .insertInto("functions")
    .values({
      workspace_id: workspace.id,
      name: `fn${randomBytes(4).toString("hex")}`,
      runtime: "nodejs",
      handler_code: "",
      auth_mode: "none",
      api_key_hash: null,
      api_key_hint: null,
      idle_timeout_seconds: 300,
      env_sealed: null,
      memory_mb: 256,
      timeout_seconds: 30,
      region: region.code,
      live_version_id: null,
      last_deployed_at: null,
      error: null,
      deleted_at: null,
      ...columns,
    })
    .returningAll()
    .executeTakeFirstOrThrow();
  return { id: row.id, name: row.name, workspaceId: workspace.id };
}

export function makeVersion(
  db: Db,
  host: Pick<InstancesHost, "image">,
  { id: functionId }: TestFunction,
  number: number,
  code: string,
  runtime: "nodejs" | "python" = "nodejs",
): Promise<VersionRow> {
  return db
    .insertInto("function_versions")
    .values({
      id: `fnv_${randomBytes(8).toString("hex")}`,
      function_id: functionId,
      number,
      state: "building",
      runtime,
      handler_code: code,
      dependencies: "{}",
      lock: null,
      image_id: host.image,
      trigger_kind: null,
      trigger_actor: null,
      rolled_back_from: null,
      progress: null,
      error: null,
      finished_at: null,
    })
    .returningAll()
    .executeTakeFirstOrThrow();
}

/** Makes the version live, as the last transaction of a deploy does. */
export async function goLive(db: Db, version: VersionRow): Promise<void> {
  await db.transaction().execute(async (tx) => {
    await tx
      .updateTable("function_versions")
      .set({ state: "superseded" })
      .where("function_id", "=", version.function_id)
      .where("state", "=", "live")
      .execute();
    await tx
      .updateTable("function_versions")
      .set({ state: "live", finished_at: new Date() })
      .where("id", "=", version.id)
      .execute();
    await tx
      .updateTable("functions")
      .set({ live_version_id: version.id })
      .where("id", "=", version.function_id)
      .execute();
  });
}

/** Proves a version and makes it live. */
export async function deployHandler(
  db: Db,
  host: InstancesHost,
  made: TestFunction,
  code: string,
  { number = 1, runtime = "nodejs" }: { number?: number; runtime?: "nodejs" | "python" } = {},
): Promise<VersionRow> {
  const version = await makeVersion(db, host, made, number, code, runtime);
  await host.instances.prove(version, new AbortController().signal);
  await goLive(db, version);
  await host.instances.switched(made.id);
  return version;
}
