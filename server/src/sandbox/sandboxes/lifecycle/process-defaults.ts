/** Defaults that a sandbox's processes have from its image: WORKDIR and USER of a Dockerfile. */
import type { App } from "#app.ts";
import type { SandboxRow } from "../store.ts";

/**
 * Returns the directory and user of a start: the request's own, or else the image's. The machine's defaults are
 * /workspace and root.
 */
export function processPlace(
  { process_defaults: defaults }: Pick<SandboxRow, "process_defaults">,
  input: { cwd?: string | undefined; user?: string | undefined } = {},
): { cwd?: string; user?: string } {
  const cwd = input.cwd ?? defaults?.cwd ?? undefined;
  const user = input.user ?? defaults?.user ?? undefined;
  return { ...(cwd === undefined ? {} : { cwd }), ...(user === undefined ? {} : { user }) };
}

/** An image of a Dockerfile may lack /workspace, the directory of uploaded files. */
export async function makeWorkspace(
  app: Pick<App, "machines" | "log">,
  machine: string,
  { id }: Pick<SandboxRow, "id">,
): Promise<void> {
  const guest = app.machines.connect(machine);
  try {
    if ((await guest.stat("/workspace")) !== undefined) return;
    await guest.mkdir("/workspace", { mode: 0o755, parents: true, roots: ["/"] });
  } catch (error) {
    // The sandbox works without the directory.
    app.log.warn({ sandbox: id, err: error }, "/workspace could not be made");
  }
}
