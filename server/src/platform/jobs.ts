/** Lists the background tasks of the platform by task name. */
import type { App } from "#app.ts";
import { deleteProjectImages, sweepTask } from "#builds/app-images.ts";
import type { JobContext, Tasks } from "#jobs/jobs.ts";
import type { Addons } from "./addons/addons.ts";
import { type AddonParts, removeAddon, removeAddonTask, removeProjectAddons } from "./addons/delete.ts";
import type { Backups } from "./backups/backups.ts";
import { recheck, recheckTask } from "./domains/recheck.ts";
import type { Apps } from "./apps/apps.ts";
import { removeProject as removeApps, stopEnvironment } from "./apps/release/remove.ts";
import { scanAndDescribe } from "./deployments/pipeline/steps-on-host.ts";
import { LateScans, lateScanTask } from "./deployments/pipeline/scan-step.ts";
import { type EnvironmentParts, removeEnvironment, removeEnvironmentTask } from "./environments/delete.ts";
import { removeFunction, removeFunctionTask } from "./functions/delete.ts";
import type { FunctionParts } from "./functions/parts.ts";
import { removeRepository } from "./git/hosting/repositories.ts";
import { sweepImages } from "./images/retention.ts";
import { type ProjectParts, removeProject, removeProjectTask } from "./projects/delete.ts";

/** Services that run machines for projects. The services stop these machines when a project is deleted. */
export interface Runners {
  apps: Apps;
  addons: Addons;
  backups: Backups;
  functions: FunctionParts;
}

export function platformTasks(app: App, runners: Runners): Tasks {
  const lateScans = new LateScans(app, scanAndDescribe);
  return {
    ...runners.backups.tasks,
    [removeAddonTask]: ({ addon }: { addon: string }) =>
      removeAddon(runners.addons, addon, addonParts(runners)),
    [removeEnvironmentTask]: ({ environment }: { environment: string }) =>
      removeEnvironment(app, environment, partsOf(app, runners)),
    [recheckTask]: () => recheck(app),
    [removeProjectTask]: ({ project }: { project: string }) =>
      removeProject(app, project, partsOf(app, runners)),
    [removeFunctionTask]: (payload: { function: string }) =>
      removeFunction(app, payload.function, runners.functions),
    [sweepTask]: () => sweepImages(app),
    [lateScanTask]: ({ deployment }: { deployment: string }, { signal }: JobContext) =>
      lateScans.finish(deployment, signal),
  };
}

/** Returns functions that delete the parts of a project or environment outside its rows. */
function partsOf(app: App, runners: Runners): EnvironmentParts & ProjectParts {
  const { apps, addons } = runners;
  return {
    stopEnvironment: (environmentId) => stopEnvironment(apps, environmentId),
    removeApps: (projectId) => removeApps(apps, projectId),
    removeAddons: (projectId) => removeProjectAddons(addons, projectId, addonParts(runners)),
    dropImages: (projectId) => deleteProjectImages(app, projectId),
    removeRepository: (projectId) => removeRepository(app, projectId),
  };
}

/** Returns functions that delete the parts of an add-on outside its machine. */
function addonParts({ backups }: Runners): AddonParts {
  return { deleteBackups: (addonId) => backups.deleteBackups(addonId) };
}
