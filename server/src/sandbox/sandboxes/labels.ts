/** Removes labels of sandboxes that name an erased person. */
import type { Db } from "#schema.ts";
import { removeLabel } from "./store.ts";

/**
 * Removes the label from all sandboxes of the workspace, in any state, that have one of the values under the name.
 */
export function removeSandboxLabel(
  tx: Db,
  workspaceId: string,
  name: string,
  values: readonly string[],
): Promise<void> {
  return removeLabel(tx, workspaceId, name, values);
}
