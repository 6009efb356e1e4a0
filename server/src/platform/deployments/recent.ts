import type { Db } from "#schema.ts";
import { type DeploymentRow, listRecent } from "./store.ts";

export function recentDeployments(db: Db, workspaceId: string, limit: number): Promise<DeploymentRow[]> {
  return listRecent(db, workspaceId, limit);
}
