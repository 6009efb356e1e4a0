/** What sandboxes are labelled with, taken off where it names what is to be forgotten. */
import type { Db } from "#schema.ts";
import { removeLabel } from "./store.ts";

/** From all sandboxes of the workspace, whatever became of them, that have one of the values under the name. */
export function dropLabel(
  tx: Db,
  workspaceId: string,
  name: string,
  values: readonly string[],
): Promise<void> {
  return removeLabel(tx, workspaceId, name, values);
}
