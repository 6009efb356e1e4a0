/** The long-lived objects of the APIs. The constructors start nothing; `services.ts` starts the objects in order. */
import { RunExecutor } from "#agent/runs/engine/run-executor.ts";
import { Scheduler } from "#agent/schedules/scheduler.ts";
import type { App } from "#app.ts";
import { Builds } from "#builds/run.ts";
import type { MachineOwners } from "#machines/machine-owner.ts";
import { Addons } from "#platform/addons/addons.ts";
import { Apps } from "#platform/apps/apps.ts";
import { Backups } from "#platform/backups/backups.ts";
import { openBlobs } from "#platform/backups/blobs.ts";
import { isEnvironmentServed } from "#platform/deployments/deployments.ts";
import { followDeployment } from "#platform/deployments/logs.ts";
import { hostPipeline } from "#platform/deployments/pipeline/steps-on-host.ts";
import { deployPush } from "#platform/deployments/request/deploy.ts";
import { Deployments } from "#platform/deployments/worker/deployments-worker.ts";
import { FunctionDeploys } from "#platform/functions/deploy/function-deploys.ts";
import { Pushes } from "#platform/git/hosting/push.ts";
import { FunctionInstances } from "#platform/instances/instances.ts";
import { PreparedImages } from "#platform/prepare.ts";
import { sandboxOwner } from "#sandbox/sandboxes/machine-events/machine-owner.ts";
import { templateBuilds } from "#sandbox/templates/finish.ts";

/** Parts of the server that own machines. */
export interface Owners {
  builds: Builds;
  apps: Apps;
  functions: FunctionInstances;
  addons: Addons;
}

export interface Parts extends Owners {
  backups: Backups;
  deployments: Deployments;
  functionDeploys: FunctionDeploys;
  pushes: Pushes;
  preparedImages: PreparedImages;
  agentRuns: RunExecutor;
  scheduler: Scheduler;
}

export function makeOwners(app: App, instances?: ConstructorParameters<typeof FunctionInstances>[1]): Owners {
  return {
    builds: new Builds(app, { template: templateBuilds(app) }),
    apps: new Apps(app),
    functions: new FunctionInstances(app, instances),
    addons: new Addons(app),
  };
}

/** Owners of machines, by kind. */
export function machineOwners(app: App, { builds, apps, functions, addons }: Owners): MachineOwners {
  return {
    sandbox: sandboxOwner(app),
    build: builds.machineOwner,
    app: apps.machineOwner,
    function: functions.machineOwner,
    addon: addons.machineOwner,
  };
}

/** `hostId`: identity of this host, by which a restarted server finds the runs of its previous process. */
export function makeParts(app: App, hostId: string): Parts {
  const owners = makeOwners(app);
  const agentRuns = new RunExecutor(app, {
    hostId,
    heldWorkspaces: () => app.machines.suspension.heldWorkspaces,
  });
  return {
    ...owners,
    backups: new Backups(app, owners.addons, openBlobs(app.config)),
    deployments: new Deployments(app, hostPipeline(owners.apps)),
    functionDeploys: new FunctionDeploys(app, owners.functions),
    pushes: new Pushes(app, {
      pushed: (push) => deployPush(app, push),
      follow: (id, signal) => followDeployment(app, id, signal),
      isServed: (id) => isEnvironmentServed(app, id),
    }),
    preparedImages: new PreparedImages(app, app.config.prepareImages),
    agentRuns,
    scheduler: new Scheduler(app, agentRuns),
  };
}
