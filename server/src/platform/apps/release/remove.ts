/** Removes the apps of an environment or a project: processes, machines and logs. Safe to repeat. */
import type { AppsContext } from "../apps-context.ts";
import { removeInstance } from "./drain.ts";
import { environmentsOf } from "../store.ts";

export async function stopEnvironment(apps: AppsContext, environmentId: string): Promise<void> {
  await apps.turn(environmentId, async () => {
    // The route of a deleted environment is removed first, so the app gets no request while its processes end.
    await apps.routes.refresh(environmentId);
    for (const running of apps.of(environmentId)) await removeInstance(apps, running);
    await apps.app.machines.logs.remove(environmentId);
    await apps.routes.refresh(environmentId);
  });
}

export async function removeProject(apps: AppsContext, projectId: string): Promise<void> {
  for (const id of await environmentsOf(apps.app.db, projectId)) await stopEnvironment(apps, id);
}
