/** The background work of this room, by the names it is queued under. */
import type { App } from "#app.ts";
import type { Tasks } from "#jobs/jobs.ts";
import { recheck, recheckTask } from "./domains/recheck.ts";
import {
  carryOutDeletion as removeEnvironment,
  type EnvironmentParts,
  removeEnvironmentTask,
} from "./environments/delete.ts";
import { removeRepository } from "./git/repositories.ts";
import {
  carryOutDeletion as removeProject,
  type ProjectParts,
  removeProjectTask,
} from "./projects/delete.ts";

export const platformTasks = (app: App): Tasks => ({
  [removeEnvironmentTask]: ({ environment }: { environment: string }) =>
    removeEnvironment(app, environment, partsOf(app)),
  [recheckTask]: () => recheck(app),
  [removeProjectTask]: ({ project }: { project: string }) => removeProject(app, project, partsOf(app)),
});

/** What goes with a project or an environment beside its rows. */
function partsOf(app: App): EnvironmentParts & ProjectParts {
  return {
    stopEnvironment: async () => undefined,
    removeApps: async () => undefined,
    dropImages: async () => undefined,
    removeRepository: (projectId) => removeRepository(app, projectId),
  };
}
