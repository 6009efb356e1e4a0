/** Who leads visitors to environments by their hosts: told of a change after its commit, and before its caller is. */
import type { App } from "#app.ts";

export interface Hosts {
  /** The project's environments are found by the hosts they have now. */
  refreshProject(projectId: string): Promise<void>;
}

/** `change` is committed when it settles. What could not be told of it is no reason to call it failed. */
export async function ledTo<T>(
  { log }: Pick<App, "log">,
  hosts: Hosts,
  change: Promise<T>,
  projectOf: (changed: T) => string,
): Promise<T> {
  const changed = await change;
  await hosts.refreshProject(projectOf(changed)).catch((error: unknown) => {
    log.warn({ project: projectOf(changed), err: error }, "its hosts are not led to before it is deployed");
  });
  return changed;
}
