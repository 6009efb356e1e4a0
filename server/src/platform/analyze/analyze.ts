/**
 * Analyzes a project's repository and returns the recipe of its next deployment. The newest commit of the production
 * branch is checked out, read as data, and deleted.
 */
import { randomUUID } from "node:crypto";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { Actor } from "#accounts/actor.ts";
import { payerOf } from "#accounts/payers.ts";
import { requireNotSuspended } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { analyze } from "#builds/detection/detection.ts";
import { recipeOf } from "#builds/detection/recipe.ts";
import { directoryTree } from "#builds/detection/tree.ts";
import { FairSemaphore } from "#lib/concurrency/fair-semaphore.ts";
import { checkout } from "../git/fetch/checkout.ts";
import { repositoryEmpty, repositoryUnavailable } from "../git/errors.ts";
import { checkoutsDirectory } from "../git/git.ts";
import { overridesOf } from "../projects/overrides.ts";
import { getProject, type ProjectRow, workspaceOf } from "../projects/projects.ts";
import { analysisQueueFull, settingsRefused } from "./errors.ts";
import { type RepoAnalysis, toRepoAnalysis } from "./schema.ts";

type Needs = Pick<App, "db" | "config" | "secrets">;

/** Deadline for the response, because a client waits. A larger repository can be deployed and not analyzed. */
const deadlineMs = 60_000;
/** An analysis runs git and writes the files of a whole repository, so each payer has one slot. */
const slots = new FairSemaphore({
  limit: 2,
  queue: { max: 10, refuse: analysisQueueFull },
});

export async function analyzeProject(app: Needs, actor: Actor, projectId: string): Promise<RepoAnalysis> {
  const project = await getProject(app, actor, projectId);
  requireNotSuspended(workspaceOf(actor, project));
  return slots.run(await payerOf(app.db, project.workspace_id), async () => {
    // The deadline starts here, so the wait for a slot does not count.
    const signal = AbortSignal.timeout(deadlineMs);
    // The directory is one of git's own checkouts, which the next start of the server deletes.
    const into = join(checkoutsDirectory(app), `analysis-${randomUUID()}`);
    try {
      await checkout(app, project, { branch: project.branch, sha: null, into, log: () => {}, signal });
      return await read(project, into);
    } catch (error) {
      throw signal.aborted ? repositoryUnavailable(`it took more than ${deadlineMs / 1000} seconds.`) : error;
    } finally {
      await rm(into, { recursive: true, force: true });
    }
  });
}

async function read(project: ProjectRow, directory: string): Promise<RepoAnalysis> {
  try {
    const analysis = await analyze(directoryTree(directory), {
      rootDirectory: project.root_directory,
      ...(project.framework === null ? {} : { framework: project.framework }),
      overrides: overridesOf(project),
    });
    if (!analysis) throw repositoryEmpty();
    return toRepoAnalysis(project, analysis, recipeOf(analysis, overridesOf(project)));
  } catch (error) {
    // A RangeError names a setting that no recipe supports.
    throw error instanceof RangeError ? settingsRefused(`${error.message}.`) : error;
  }
}
