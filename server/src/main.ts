/**
 * The server, as a table of contents: what is brought up, in which order, and how it is let go of again.
 *
 * Everything that is brought up says on the line before how it is taken down; a shutdown, and a start that fails
 * half way, walk that list backwards. Machines run on without the server, and so does the embedded PostgreSQL: the
 * next start finds both.
 */
import { mkdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { run } from "@kontor/runtime/exec.ts";
import { hostMirrors } from "@kontor/runtime/rootfs/sources.ts";
import { accessLogOf } from "#accounts/activity/access-log.ts";
import { bootstrapOperator } from "#accounts/bootstrap.ts";
import { findActor, findActors } from "#accounts/find-actor.ts";
import { withLimitNews } from "#accounts/notifications/limits.ts";
import { workspaceOf } from "#accounts/suspension/workspace-of.ts";
import { expandAllowlist } from "#egress/defaults.ts";
import { Egress } from "#egress/egress.ts";
import { allowlistOf as buildAllowlist, runTask as buildTask } from "#builds/builds.ts";
import { sweepTask } from "#builds/app-images.ts";
import { Builds } from "#builds/run.ts";
import { caFile } from "#ingress/tls/local.ts";
import { agentBeside, agentRoutes, agentSites } from "#agent/api.ts";
import { agentTasks } from "#agent/jobs.ts";
import { ownApi } from "#agent/workers/api.ts";
import { sealClearHeaders } from "#agent/toolsets/calls/headers.ts";
import { AgentRuns } from "#agent/runs/engine/run-executor.ts";
import { moveTurnDeadlines } from "#agent/runs/engine/turns.ts";
import { Scheduler } from "#agent/schedules/scheduler.ts";
import { startMachineCare } from "#agent/vm/park-machines.ts";
import { becomeSoleServer } from "#db/sole-server.ts";
import { openDatabase } from "#db/db.ts";
import type { Database } from "#schema.ts";
import { ensureEmbedded } from "#db/embedded/embedded.ts";
import { refuseUnfinishedLoad, refuseUnfinishedRestore } from "#db/load.ts";
import { migrate } from "#db/migrate.ts";
import { openSecrets } from "#db/secrets.ts";
import { finishRollback, markWorked } from "#db/upgrade.ts";
import { createHttpServer } from "#http/server.ts";
import { addJob, openJobs } from "#jobs/jobs.ts";
import { systemClock } from "#lib/clock.ts";
import { ensureHostId } from "#lib/host-id.ts";
import { createLog } from "#lib/log.ts";
import { writeStateFile } from "#lib/state-file.ts";
import { announceDiskHold } from "./compose/disk-notices.ts";
import { Denials } from "#machines/denials.ts";
import type { Machines } from "#machines/machines.ts";
import { openMachines } from "#machines/open.ts";
import { poolFloors } from "#machines/placement/pool.ts";
import { pushed } from "#platform/deployments/request/deploy.ts";
import { runTask as deploymentTask } from "#platform/deployments/deployments.ts";
import { isEnvironmentServed } from "#platform/deployments/deployments.ts";
import { followDeployment } from "#platform/deployments/logs.ts";
import { sweepCheckouts } from "#platform/git/fetch/checkout.ts";
import { gitSite } from "#platform/git/hosting/hosting-routes.ts";
import { Pushes } from "#platform/git/hosting/push.ts";
import { PreparedImages } from "#platform/prepare.ts";
import { platformRoutes } from "#platform/api.ts";
import { deployTask } from "#platform/functions/deploy/queue-deploy.ts";
import { FunctionDeploys } from "#platform/functions/deploy/function-deploys.ts";
import { scheduleRecheck } from "#platform/domains/recheck.ts";
import { Addons } from "#platform/addons/addons.ts";
import { Backups } from "#platform/backups/backups.ts";
import { openBlobs } from "#platform/backups/blobs.ts";
import { downloadSite } from "#platform/backups/site-routes.ts";
import { platformTasks } from "#platform/jobs.ts";
import { Apps } from "#platform/apps/apps.ts";
import { FunctionInstances } from "#platform/instances/instances.ts";
import { partsOf } from "#platform/deployments/pipeline/steps-on-host.ts";
import { Deployments } from "#platform/deployments/worker/deployments-worker.ts";
import { sandboxBeside, sandboxHoldings, sandboxRoutes } from "#sandbox/api.ts";
import { allowlistOf } from "#sandbox/sandboxes/allowlist.ts";
import { sandboxTasks } from "#sandbox/jobs.ts";
import { templateBuilds } from "#sandbox/templates/finish.ts";
import { moveApprovalDeadlines } from "#agent/approvals/expire.ts";
import { moveSignInDeadlines } from "#agent/oauth/waits/waits.ts";
import { DeniedEgress } from "#sandbox/sandboxes/machine-events/denied-egress.ts";
import { moveSandboxDeadlines, startExpiry } from "#sandbox/sandboxes/lifecycle/expire.ts";
import { sandboxOwner } from "#sandbox/sandboxes/machine-events/machine-owner.ts";
import { repairVolumes } from "#sandbox/volumes/repair.ts";
import { shapeOf } from "#sandbox/sandboxes/limits/sizes.ts";
import type { App } from "./app.ts";
import { introductions } from "./compose/introductions.ts";
import { openWayIn } from "./compose/ingress.ts";
import { baseUrl, type Config, ConfigError, inheritedSockets, loadServerConfig } from "./config.ts";

const startedAt = new Date();
const config = readConfig();
const log = createLog({ level: config.logLevel, format: config.logFormat });
const running = new AsyncDisposableStack();
const serverFile = join(config.dataDir, "server.json");
let isEnding = false;
let graceSeconds = config.shutdownGraceSeconds;
/** At a restart somebody waits at the door for as long as this. */
const restartGraceSeconds = 3;
/** Whoever uses a kept connection within this is told to leave it; closed at once it could break under a request. */
const farewellMs = 300;

endWithTheProcess();
try {
  await start();
} catch (error) {
  // A signal during the start takes down what is up, and what comes up after that fails: no news.
  if (!isEnding) {
    log.fatal({ error }, `the server did not start: ${(error as Error).message}`);
    await running.disposeAsync().catch(() => {});
    process.exit(1);
  }
}

async function start(): Promise<void> {
  // Others must be able to pass through, PostgreSQL's account among them, but not to look around.
  mkdirSync(config.dataDir, { recursive: true, mode: 0o711 });
  refuseUnfinishedRestore(config.dataDir);
  const hostId = ensureHostId(config.dataDir);
  // Asks the host's own programs, which takes a second; the database starts meanwhile.
  const defaultAllowlist = expandAllowlist(config.defaultEgressAllowlist, {
    // A program that hangs leaves its hosts out of the list; it does not hold the server's start.
    ask: async (argv) => (await run(argv, { cwd: "/", timeoutMs: 5_000 })).stdout,
    aptArchives: async () => Object.values(await hostMirrors()).filter((address) => address !== null),
  });

  const connection = config.databaseUrl
    ? { url: config.databaseUrl }
    : (await ensureEmbedded(config.dataDir)).connection;
  const rolledBack = await finishRollback(connection, { dataDir: config.dataDir, hostId });
  if (rolledBack) log.warn({ database: rolledBack }, "an upgrade was rolled back");
  const sole = await becomeSoleServer(connection, hostId, () => {
    log.fatal("another server took over this data directory; this one ends");
    process.kill(process.pid, "SIGTERM");
  });
  if (!sole) throw new Error(`a server already serves ${config.dataDir}${whereItIs()}`);
  running.defer(() => sole.release());

  await refuseUnfinishedLoad(connection);
  const migrated = await migrate(connection);
  if (migrated.length > 0) log.info({ migrated }, "database migrated");
  const database = openDatabase<Database>(connection, {
    maxConnections: config.databaseConnections,
    onError: (error) => log.warn({ error }, "a database connection broke; another takes its place"),
  });
  running.defer(() => database.close());
  const { db, upkeep, pool } = database;
  const secrets = await openSecrets(db, { dataDir: config.dataDir, configured: config.secretsKey });

  await sealClearHeaders({ db: upkeep, secrets });

  const jobs = await openJobs({ db: upkeep, pool, log, hostId, version: version() });
  running.defer(() => jobs.stop(0));

  const denials = new Denials({ clock: systemClock });
  const egress = new Egress({
    allowlistOf: async (machine) => {
      const defaults = await defaultAllowlist;
      return (await allowlistOf(db, machine, defaults)) ?? buildAllowlist(db, machine, defaults);
    },
    dnsServers: config.dnsServers,
    privateHosts: config.allowPrivateHosts,
    denied: (machine, denied) => denials.add(machine, denied),
    log: (event, fields) => log.debug(fields, event),
  });
  const machines = await openMachines({ config, db, clock: systemClock, log, egress, denials });
  running.defer(() => machines.close());
  const known = { ...config, defaultEgressAllowlist: await defaultAllowlist };
  const app: App = { config: known, db, jobs, machines, secrets, clock: systemClock, log };
  // With connections of their own, leases and deadlines hold on a busy server.
  const caretaker: App = { ...app, db: upkeep };
  const builds = new Builds(app, { template: templateBuilds(app) });
  const apps = new Apps(app);
  const functions = new FunctionInstances(app);
  const addons = new Addons(app);
  const owners = {
    sandbox: sandboxOwner(app),
    build: builds.machineOwner,
    app: apps.machineOwner,
    function: functions.machineOwner,
    addon: addons.machineOwner,
  };
  machines.suspension.onRelease(moveSandboxDeadlines);
  machines.suspension.onRelease(moveApprovalDeadlines);
  machines.suspension.onRelease(moveSignInDeadlines);
  machines.suspension.onRelease(moveTurnDeadlines);
  // Queued work of the workspace waited during the suspension.
  machines.suspension.onRelease(async (tx) => {
    for (const task of [buildTask, deploymentTask, deployTask]) await addJob(tx, task, {});
  });
  await machines.start(caretaker, owners, announceDiskHold(caretaker));
  await apps.start();
  running.defer(() => apps.close());
  await functions.start();
  running.defer(() => functions.close());
  await addons.start();
  running.defer(() => addons.close());
  const backups = new Backups(app, addons, openBlobs(config));
  // Before the jobs: a deployment that goes on is switched to by way of it.
  const { ingress, ...wayIn } = await openWayIn(app, apps, functions);
  running.defer(() => wayIn.close());
  addons.doors.encryptWith(async (name) => wayIn.certificates?.contextFor(name));
  const deployments = new Deployments(app, partsOf(apps));
  const functionDeploys = new FunctionDeploys(app, functions);
  await repairVolumes(app);
  // Before all that removes, makes or ends anything in the background: a rollback reports this time.
  markWorked(config.dataDir);
  builds.start();
  running.defer(() => builds.stop());
  const prepared = new PreparedImages(app, config.prepareImages);
  const preparing = new AbortController();
  running.defer(() => preparing.abort(new Error("the server ends")));
  void prepareTemplates(machines, poolFloors(config, (await machines.host.facts()).memoryBytes)).then(() =>
    prepared.run(preparing.signal),
  );
  const deniedEgress = new DeniedEgress(caretaker);
  running.defer(() => deniedEgress.stop());
  const expiry = startExpiry(caretaker);
  running.defer(() => expiry.stop());
  // Before the jobs: a deployment that goes on checks out anew.
  await sweepCheckouts(app);
  await deployments.resetProgress();
  await functionDeploys.begin();
  // Webhooks mostly wait for somebody else's answer; ten that are slow must not hold up the rest.
  await jobs.startWorker(
    {
      ...sandboxTasks(app),
      ...platformTasks(app, { apps, addons, backups, functions }),
      ...deployments.tasks,
      ...functionDeploys.tasks,
      ...builds.tasks,
      ...agentTasks(app),
    },
    // Each of them may want a connection.
    { concurrency: Math.min(25, config.databaseConnections) },
  );
  await scheduleRecheck(app);
  const agentRuns = new AgentRuns(app, { hostId, heldWorkspaces: () => machines.suspension.heldWorkspaces });
  running.defer(() => agentRuns.stop());
  const scheduler = new Scheduler(app, agentRuns);
  scheduler.start();
  running.defer(() => scheduler.stop());
  const machineCare = startMachineCare(caretaker);
  running.defer(() => machineCare.stop());
  await backups.start();

  // What a server that was killed had built and told nobody of goes now, and from time to time.
  await jobs.add(db, sweepTask, {}, { key: sweepTask });

  await bootstrapOperator(app, async (operator) => {
    writeStateFile(join(config.dataDir, "operator.json"), { ...addresses(config), ...operator }, 0o600);
  });

  const access = accessLogOf(app);
  running.defer(() => access.close());
  access.startPruning({
    days: config.activityRetentionDays,
    accessDays: config.activityAccessRetentionDays,
  });

  const pushes = new Pushes(app, {
    pushed: (push) => pushed(app, push),
    follow: (id, signal) => followDeployment(app, id, signal),
    isServed: (id) => isEnvironmentServed(app, id),
  });
  await pushes.catchUp();
  const routes = {
    platform: withLimitNews(
      app,
      platformRoutes(app, {
        holdings: sandboxHoldings,
        ...sandboxBeside,
        ...agentBeside,
        apps,
        functions,
        addons,
        backups,
      }),
    ),
    sandbox: withLimitNews(app, sandboxRoutes(app)),
    agent: withLimitNews(app, agentRoutes(app, agentRuns)),
  };
  const http = await createHttpServer(app, routes, {
    findActor: (credential) => findActor(app, credential),
    findActors: (credentials) => findActors(app, credentials),
    workspaceOf: (actor, target) => workspaceOf(db, actor, target),
    readiness: async () => ({
      ready: true,
      templates: machines.images.status(),
      images: prepared.status(),
    }),
    front: ingress,
    introductions,
    noteAccess: (note) => access.note(note),
    raw: [gitSite(app, pushes), downloadSite(backups), ...agentSites(app)],
  });
  await agentRuns.start(ownApi(routes, http));
  running.defer(() => rmSync(serverFile, { force: true }));
  // Requests and jobs end together, within one grace: a request may wait for a job.
  running.defer(async () => {
    http.startDraining();
    ingress.startDraining();
    await sleep(farewellMs);
    const graceMs = graceSeconds * 1000;
    await Promise.all([http.close(graceMs), ingress.close(graceMs), jobs.stop(graceMs)]);
  });
  const [plain, tls] = inheritedSockets();
  const port = await http.listen({ host: config.host, port: config.port, ...onSocket(plain) });
  const tls_port = await ingress.listenTls({ host: config.host, port: config.tlsPort, ...onSocket(tls) });
  await deployments.begin();
  const base_url = baseUrl({ port });
  writeStateFile(serverFile, { pid: process.pid, port, tls_port, base_url, started_at: startedAt }, 0o644);
  log.info(
    { base_url, tls_port, pid: process.pid, ms: Date.now() - startedAt.getTime() },
    `Kontor listens at ${base_url}`,
  );
}

/** First signal: drain and go, soon where it is SIGHUP, a restart. Second: go. What nobody caught is logged before the process ends. */
function endWithTheProcess(): void {
  const end = async (signal: NodeJS.Signals) => {
    if (isEnding) process.exit(1);
    isEnding = true;
    if (signal === "SIGHUP") graceSeconds = Math.min(graceSeconds, restartGraceSeconds);
    log.info({ signal }, "draining; a second signal ends the server at once");
    try {
      await running.disposeAsync();
      log.info("the server ended");
      process.exit(0);
    } catch (error) {
      log.error({ error }, "the server ended, and not everything was let go of in order");
      process.exit(1);
    }
  };
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"] as const) process.on(signal, (name) => void end(name));
  process.on("uncaughtException", (error) => {
    log.fatal({ error }, "an error nobody caught; the server ends");
    process.exit(1);
  });
  // Whoever read the log may go; the server stays.
  process.stdout.on("error", () => {});
}

function onSocket(fd: number | undefined): { fd?: number } {
  return fd === undefined ? {} : { fd };
}

/** Makes templates ahead of time, one after the other, those with a pool first. Fills each pool after its template. */
async function prepareTemplates(
  { images, host, pool }: Machines,
  floors: ReadonlyMap<string, number>,
): Promise<void> {
  const wanted = config.prepareTemplates ?? host.imageNames();
  for (const name of new Set([...floors.keys(), ...wanted])) {
    try {
      await images.ensure(name);
    } catch (error) {
      log.error({ error, template: name }, "a template could not be made; a request for it tries again");
    }
    const floor = floors.get(name);
    if (floor !== undefined) pool.keep(shapeOf(name, "small", config.machineDiskGb), floor);
  }
}

/** What a person or a program needs to find this installation; `operator.json` holds it beside the credentials. */
function addresses({ port, publicUrl, appsDomain, previewDomain, tlsMode, dataDir }: Config) {
  return {
    base_url: baseUrl({ port }),
    public_url: publicUrl,
    ca_file: tlsMode === "local" ? caFile(dataDir) : null,
    apps_domain: appsDomain,
    preview_domain: previewDomain,
  };
}

function whereItIs(): string {
  try {
    const { base_url, pid } = JSON.parse(readFileSync(serverFile, "utf8")) as {
      base_url: string;
      pid: number;
    };
    return `: ${base_url} (process ${pid})`;
  } catch {
    return "";
  }
}

function version(): string {
  const file = new URL("../package.json", import.meta.url);
  return (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version;
}

function readConfig(): Config {
  try {
    return loadServerConfig();
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    process.stderr.write(`The configuration does not fit:\n  ${error.problems.join("\n  ")}\n`);
    process.exit(1);
  }
}
