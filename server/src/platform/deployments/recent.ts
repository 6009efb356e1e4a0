import type { Db } from "#schema.ts";
import { type DeploymentRow, listRecent } from "./store.ts";

/** The newest of a workspace, whichever project they are of. */
export function recentDeployments(db: Db, workspaceId: string, limit: number): Promise<DeploymentRow[]> {
  return listRecent(db, workspaceId, limit);
}
