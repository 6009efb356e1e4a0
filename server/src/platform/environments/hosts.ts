/** Updates the ingress' table of hosts, after a commit and before the response to the caller. */
import type { App } from "#app.ts";

export interface Hosts {
  /** Reads the hosts of the project's environments again. */
  refreshProject(projectId: string): Promise<void>;
}

/**
 * Waits for the commit of `change`, and then updates the hosts. A failed update is only logged, because the change
 * itself succeeded.
 */
export async function refreshHostsAfter<T>(
  { log }: Pick<App, "log">,
  hosts: Hosts,
  change: Promise<T>,
  projectOf: (changed: T) => string,
): Promise<T> {
  const changed = await change;
  await hosts.refreshProject(projectOf(changed)).catch((error: unknown) => {
    log.warn(
      { project: projectOf(changed), err: error },
      "the hosts of a project are not served before its next deployment",
    );
  });
  return changed;
}
