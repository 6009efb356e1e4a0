/**
 * Functions on real machines, in this process: the machine layer, the function layer, and an ingress by name. Their
 * images consist of a template and a directory; tests of the API cover real builds.
 */
import { chmodSync, cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { type AddressInfo, BlockList } from "node:net";
import { join } from "node:path";
import { FakeBuilder } from "@kontor/runtime/fake/builder.ts";
import { LinuxDriver } from "@kontor/runtime/linux/driver.ts";
import { testImage } from "@kontor/runtime/rootfs/testing/image.ts";
import type { App } from "../../server/src/app.ts";
import { openDatabase } from "../../server/src/db/db.ts";
import type { Database, Db } from "../../server/src/schema.ts";
import { ensureEmbedded } from "../../server/src/db/embedded/ensure-embedded.ts";
import { migrate } from "../../server/src/db/migrate.ts";
import { FunctionSites } from "../../server/src/ingress/sites/functions.ts";
import { Ingress } from "../../server/src/ingress/ingress.ts";
import { Upstreams } from "../../server/src/ingress/sites/upstreams.ts";
import { newId } from "../../server/src/lib/ids.ts";
import { systemClock } from "../../server/src/lib/clock.ts";
import { passKillPoint } from "../../server/src/lib/kill-points.ts";
import { claimHostSlot } from "../../server/src/machines/host/host-slot.ts";
import { openMachines } from "../../server/src/machines/open.ts";
import { FunctionInstances } from "../../server/src/platform/instances/instances.ts";
import {
  goLive,
  type TestFunction,
  makeFunction,
} from "../../server/src/platform/instances/testing/instances-host.ts";
import type { VersionRow } from "../../server/src/platform/instances/store.ts";
import { silentLog, testConfig, testSecrets } from "../../server/test/harness.ts";
import { removeHostTraces } from "./clean.ts";

const parent = process.env["KONTOR_E2E_DATA"] ?? "/var/tmp";
const root = join(import.meta.dirname, "../..");
const wrapper = join(root, "templates/functions/nodejs");
const domain = "apps.test";

export interface FunctionHost {
  app: Omit<App, "jobs">;
  db: Db;
  dataDir: string;
  driver: LinuxDriver;
  instances: FunctionInstances;
  /** Port of the ingress. */
  port: number;
  /** Ends the server abruptly, and starts another one. */
  restart(): Promise<void>;
  close(): Promise<void>;
}

export async function functionHost(config: Parameters<typeof testConfig>[0] = {}): Promise<FunctionHost> {
  const opened = new AsyncDisposableStack();
  const dataDir = mkdtempSync(join(parent, "kontor-functions-"));
  chmodSync(dataDir, 0o711);
  opened.defer(() => rmSync(dataDir, { recursive: true, force: true }));
  const embedded = await ensureEmbedded(dataDir);
  opened.defer(() => removeHostTraces(dataDir));
  await migrate(embedded.connection);
  const database = openDatabase<Database>(embedded.connection, { maxConnections: 10, onError: () => {} });
  opened.defer(() => database.close());
  const { db } = database;
  const settings = { ...testConfig({ runtime: "gvisor", ...config }), dataDir };
  const secrets = testSecrets();
  const start = async () => {
    const driver = new LinuxDriver({
      stateDir: join(dataDir, "machines"),
      instance: claimHostSlot(dataDir),
      uplink: settings.uplink,
      dnsServers: null,
      proxyPort: 3128,
      guestBinary: join(root, "guest/build/kontor-guest"),
      shimBinary: join(root, "runtime/shim/build/kontor-shim"),
      runsc: "runsc",
      runc: "runc",
      platform: "systrap",
      log: () => {},
      reached: passKillPoint,
    });
    const base = { config: settings, db, clock: systemClock, log: silentLog };
    const machines = await openMachines({ ...base, driver, builder: new FakeBuilder() });
    const app = { ...base, machines, secrets };
    const instances = new FunctionInstances(app);
    await machines.start(app as App, { function: instances.machineOwner });
    await instances.start();
    const upstreams = new Upstreams(async (machine, port) => machines.connect(machine).connect(port));
    machines.onRemoval((machine) => upstreams.end(machine));
    machines.suspension.onHold((machine) => upstreams.end(machine));
    const ingress = new Ingress({
      rules: [new FunctionSites({ domain, functions: instances, upstreams })],
      domains: [domain],
      apiHost: null,
      certificates: null,
      tlsSuffix: "",
      trustedProxies: new BlockList(),
      log: () => {},
    });
    const server = ingress.createServer({
      handle: (_request, response) => void response.end(),
      upgrade: (_request, socket) => void socket.destroy(),
      clientError: (_error, socket) => void socket.destroy(),
      options: { keepAliveTimeout: 60_000, shouldUpgradeCallback: () => false },
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const stop = async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      await instances.close();
      await machines.close();
    };
    return { app, driver, instances, stop, port: (server.address() as AddressInfo).port };
  };
  let running = await start();
  const host: FunctionHost = {
    ...running,
    db,
    dataDir,
    restart: async () => {
      await running.stop();
      running = await start();
      Object.assign(host, running);
    },
    close: async () => {
      const { host: machineHost } = running.app.machines;
      for (const { machine } of await machineHost.list()) {
        await machineHost.remove({
          machine,
          hostEpoch: machineHost.epoch,
          generation: Number.MAX_SAFE_INTEGER,
        });
      }
      await running.stop();
      await opened.disposeAsync();
    },
  };
  return host;
}

/** Makes an image of the template with the files of a deployment: the function server and the handler. */
export async function handlerImage({ driver, dataDir }: FunctionHost, code: string): Promise<string> {
  const { image, rootfs } = await testImage("node-22");
  const id = newId("app_");
  const layer = join(dataDir, "layers", id);
  mkdirSync(join(layer, "opt/kontor/function"), { recursive: true, mode: 0o755 });
  mkdirSync(join(layer, "app"), { mode: 0o755 });
  cpSync(wrapper, join(layer, "opt/kontor/function/nodejs"), { recursive: true });
  writeFileSync(join(layer, "app/handler.mjs"), code, { mode: 0o644 });
  await driver.importImage({ id, name: id, layers: [rootfs, layer], env: image.env, sizeBytes: 1 });
  return id;
}

/** Makes a live function of an existing image. `isProved`: its first instance has started. */
export async function makeLive(
  { db, instances }: FunctionHost,
  image: string,
  options: Parameters<typeof makeFunction>[1] & { isProved?: boolean } = {},
): Promise<TestFunction & { host: string; version: VersionRow }> {
  const { isProved = false, ...input } = options;
  const made = await makeFunction(db, input);
  const version = await db
    .insertInto("function_versions")
    .values({
      id: newId("fnv_"),
      function_id: made.id,
      number: 1,
      state: "building",
      runtime: "nodejs",
      handler_code: "",
      dependencies: "{}",
      lock: null,
      image_id: image,
      error: null,
      finished_at: null,
    })
    .returningAll()
    .executeTakeFirstOrThrow();
  if (isProved) await instances.prove(version, new AbortController().signal);
  await goLive(db, version);
  await instances.switched(made.id);
  return { ...made, version, host: `${made.name}.fn.${domain}` };
}

export interface Answer {
  status: number;
  body: string;
  ms: number;
}

export function ask(
  { port }: Pick<FunctionHost, "port">,
  host: string,
  path = "/",
  options: {
    agent?: http.Agent;
    method?: string;
    body?: string | Buffer;
    headers?: Record<string, string>;
  } = {},
): Promise<Answer> {
  const begun = performance.now();
  return new Promise((resolve, reject) => {
    const asked = http.request({
      host: "127.0.0.1",
      port,
      path,
      method: options.method ?? "GET",
      headers: { host, ...options.headers },
      agent: options.agent ?? false,
    });
    asked.once("error", reject);
    asked.once("response", (response) => {
      let body = "";
      response.setEncoding("utf8").on("data", (piece: string) => (body += piece));
      response.once("end", () =>
        resolve({ status: response.statusCode ?? 0, body, ms: performance.now() - begun }),
      );
      response.once("error", reject);
    });
    asked.end(options.body);
  });
}
