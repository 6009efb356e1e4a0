/**
 * Operator commands for users, teams and plans. The commands run the server's own code on the same database, not
 * through the API.
 */
import { dataDirectory, inProduct } from "../lib/places.ts";
import { runHere } from "../lib/run.ts";
import { withRunningSettings } from "../serve/running-settings.ts";

export const operatorNouns = {
  user: "create, list, reset-password or delete: people who may sign in",
  team: "create, list, add-member or remove-member",
  plan: "set the plan and the sandbox tier of a person or team",
  suspend: "refuse writes in the workspaces of a person or team",
  unsuspend: "allow them again",
} as const;

export async function operate(noun: string, args: readonly string[]): Promise<void> {
  const data = dataDirectory(undefined);
  const env = { ...withRunningSettings(data), KONTOR_DATA_DIR: data };
  process.exitCode = await runHere([process.execPath, inProduct("server/src/operator.ts"), noun, ...args], {
    env,
  });
}
