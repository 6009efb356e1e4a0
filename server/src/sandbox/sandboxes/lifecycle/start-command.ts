/** The command that a template runs at the first boot of every sandbox made from it. */
import type { App } from "#app.ts";
import { saveStarted } from "#sandbox/commands/commands.ts";
import type { ResolvedTemplate } from "#sandbox/templates/resolve.ts";
import { processPlace } from "./process-defaults.ts";
import { forgetStartCommand, type SandboxRow } from "../store.ts";

type Needs = Pick<App, "db" | "machines" | "clock" | "log">;

/**
 * Starts the command in the background. If the start of the command fails, the sandbox continues, and its record has no
 * command id.
 */
export async function runStartCommand(
  app: Needs,
  row: SandboxRow,
  custom: NonNullable<ResolvedTemplate["custom"]>,
): Promise<SandboxRow> {
  const { start_command: shell, start_command_id: command } = custom;
  if (shell === null || command === null || row.machine_id === null) return row;
  try {
    const started_at = app.clock.now();
    const { pid } = await app.machines.connect(row.machine_id).startCommand({
      id: command,
      shell,
      // The contract names /workspace; the image of a Dockerfile has a directory of its own.
      ...processPlace(row),
    });
    await saveStarted(app, row.id, { id: command, command: shell, tag: null, pid, started_at });
    return row;
  } catch (error) {
    app.log.warn({ sandbox: row.id, err: error }, "a template's start command could not be started");
    await forgetStartCommand(app.db, row.id);
    return { ...row, start_command_id: null };
  }
}
