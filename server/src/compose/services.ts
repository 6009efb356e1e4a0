/**
 * Everything that starts and stops with the server, in order. A shutdown, and a start that fails half way, stop the
 * started services in reverse order. Machines and the embedded PostgreSQL outlive the server; the next start finds
 * them.
 */
import { accessLogOf } from "#accounts/activity/access-log.ts";
import { bootstrapOperator } from "#accounts/bootstrap.ts";
import { moveApprovalDeadlines } from "#agent/approvals/expire.ts";
import { agentTasks } from "#agent/jobs.ts";
import { moveSignInDeadlines } from "#agent/oauth/waits/waits.ts";
import { moveTurnDeadlines } from "#agent/runs/engine/turns.ts";
import { startMachineSweeps } from "#agent/vm/park-machines.ts";
import type { App } from "#app.ts";
import { baseUrl } from "#config.ts";
import { sweepTask } from "#builds/app-images.ts";
import { runTask as buildTask } from "#builds/builds.ts";
import { recordWorkStart } from "#db/upgrade.ts";
import { addJob } from "#jobs/jobs.ts";
import { runTask as deploymentTask } from "#platform/deployments/deployments.ts";
import { scheduleRecheck } from "#platform/domains/recheck.ts";
import { deployTask } from "#platform/functions/deploy/queue-deploy.ts";
import { sweepCheckouts } from "#platform/git/fetch/checkout.ts";
import { platformTasks } from "#platform/jobs.ts";
import { sandboxTasks } from "#sandbox/jobs.ts";
import { moveSandboxDeadlines, startExpiry } from "#sandbox/sandboxes/lifecycle/expire.ts";
import { DeniedEgress } from "#sandbox/sandboxes/machine-events/denied-egress.ts";
import { repairVolumes } from "#sandbox/volumes/repair.ts";
import type { OpenedApp } from "./app.ts";
import { announceDiskHold } from "./disk-notices.ts";
import type { OpenedHttp } from "./http.ts";
import { drain, listen } from "./http.ts";
import type { OpenedIngress } from "./ingress.ts";
import { removeServerFile, writeOperatorFile, writeServerFile } from "./installation.ts";
import { machineOwners, type Parts } from "./parts.ts";
import { prepareTemplates } from "./prepare-templates.ts";

export interface Service {
  name: string;
  start?(): unknown;
  stop?(): unknown;
}

export interface Kontor extends OpenedApp, OpenedHttp {
  parts: Parts;
  ingress: OpenedIngress;
  startedAt: Date;
  /** Time that running requests and jobs have to end; shorter for a restart. */
  graceMs(): number;
}

/** The order is the order of start. */
export function services(kontor: Kontor): Service[] {
  const { app, caretaker, parts, ingress, http, ownApi } = kontor;
  const { builds, apps, functions, addons, backups, deployments, functionDeploys, agentRuns, scheduler } =
    parts;
  const { config, db, jobs, machines } = app;
  const access = accessLogOf(app);
  const preparing = new AbortController();
  return [
    { name: "suspension", start: () => moveDeadlinesOnRelease(app) },
    {
      name: "machines",
      start: () => machines.start(caretaker, machineOwners(app, parts), announceDiskHold(caretaker)),
    },
    { name: "apps", start: () => apps.start(), stop: () => apps.close() },
    { name: "functions", start: () => functions.start(), stop: () => functions.close() },
    { name: "add-ons", start: () => addons.start(), stop: () => addons.close() },
    // Starts before the jobs: a deployment that resumes uses the ingress to switch visitors.
    { name: "ingress", start: () => ingress.start(), stop: () => ingress.close() },
    { name: "volumes", start: () => repairVolumes(app) },
    // Starts before every service that changes something in the background: a rollback reports this time.
    { name: "upgrade mark", start: () => recordWorkStart(config.dataDir) },
    { name: "builds", start: () => builds.start(), stop: () => builds.stop() },
    {
      name: "images",
      start: () => void prepareTemplates(app).then(() => parts.preparedImages.run(preparing.signal)),
      stop: () => preparing.abort(new Error("the server ends")),
    },
    runningService("denied connections", () => new DeniedEgress(caretaker)),
    runningService("expiry", () => startExpiry(caretaker)),
    // Starts before the jobs: a deployment that resumes checks out its commit again.
    { name: "checkouts", start: () => sweepCheckouts(app) },
    { name: "deployments", start: () => deployments.resetProgress() },
    { name: "function deploys", start: () => functionDeploys.begin() },
    {
      name: "jobs",
      start: () =>
        jobs.startWorker(
          {
            ...sandboxTasks(app),
            ...platformTasks(app, { apps, addons, backups, functions }),
            ...deployments.tasks,
            ...functionDeploys.tasks,
            ...builds.tasks,
            ...agentTasks(app),
          },
          // Webhook deliveries mostly wait for receivers, so ten slow ones must not delay other jobs. Each job may need
          // a database connection.
          { concurrency: Math.min(25, config.databaseConnections) },
        ),
    },
    { name: "domains", start: () => scheduleRecheck(app) },
    // Stops before the schedules and machines below, which a run may use until its end.
    { name: "agent runs", stop: () => agentRuns.stop() },
    { name: "schedules", start: () => scheduler.start(), stop: () => scheduler.stop() },
    runningService("machines of sessions", () => startMachineSweeps(caretaker)),
    { name: "backups", start: () => backups.start() },
    // Orphaned images of a killed server are removed at start, and every hour afterwards.
    { name: "orphaned images", start: () => jobs.add(db, sweepTask, {}, { key: sweepTask }) },
    {
      name: "operator",
      start: () => bootstrapOperator(app, async (operator) => writeOperatorFile(config, operator)),
    },
    {
      name: "audit of reads",
      start: () =>
        access.startPruning({
          days: config.activityRetentionDays,
          accessDays: config.activityAccessRetentionDays,
        }),
      stop: () => access.close(),
    },
    { name: "pushes", start: () => parts.pushes.catchUp() },
    { name: "agent runs", start: () => agentRuns.start(ownApi) },
    { name: "server file", stop: () => removeServerFile(config.dataDir) },
    { name: "requests", stop: () => drain(app, http, ingress.ingress, kontor.graceMs()) },
    { name: "listeners", start: () => listenAndReport(kontor) },
  ];
}

/** Starts `all` in order. `running` stops the started services in reverse order. */
export async function startServices(all: readonly Service[], running: AsyncDisposableStack): Promise<void> {
  for (const service of all) {
    await service.start?.();
    if (service.stop) running.defer(async () => void (await service.stop?.()));
  }
}

/** A service that its constructor starts. */
function runningService(name: string, open: () => { stop(): unknown }): Service {
  let service: { stop(): unknown } | undefined;
  return {
    name,
    start() {
      service = open();
    },
    stop: () => service?.stop(),
  };
}

/** Deadlines do not count the time of a suspension, and queued work of the workspace continues after it. */
function moveDeadlinesOnRelease({ machines: { suspension } }: Pick<App, "machines">): void {
  suspension.onRelease(moveSandboxDeadlines);
  suspension.onRelease(moveApprovalDeadlines);
  suspension.onRelease(moveSignInDeadlines);
  suspension.onRelease(moveTurnDeadlines);
  suspension.onRelease(async (tx) => {
    for (const task of [buildTask, deploymentTask, deployTask]) await addJob(tx, task, {});
  });
}

async function listenAndReport({ app, parts, http, ingress, startedAt }: Kontor): Promise<void> {
  const { config, log } = app;
  const { port, tlsPort } = await listen(config, http, ingress.ingress);
  await parts.deployments.begin();
  writeServerFile(config.dataDir, { port, tlsPort, startedAt });
  const base_url = baseUrl({ port });
  log.info(
    { base_url, tls_port: tlsPort, pid: process.pid, ms: Date.now() - startedAt.getTime() },
    `Kontor listens at ${base_url}`,
  );
}
