/** Creates a session's machine. A single transaction stores the rows of the sandbox and of the machine. */
import type { Actor } from "#accounts/actor.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { createKept } from "#sandbox/sandboxes/lifecycle/create.ts";
import { endSandbox } from "#sandbox/sandboxes/lifecycle/terminate.ts";
import { RunFailure } from "../runs/engine/run-failure.ts";
import type { ToolUser } from "../tools/tool.ts";
import { sandboxOf, vmOf } from "./config.ts";
import { lockLiveSession, type MachineRow, putMachine } from "./store.ts";

/** Label of the sandbox with the session's id. */
export const sessionLabel = "agent_session";

/** Thrown if a concurrent call created a machine first. */
class Overtaken extends Error {}

/**
 * Creates a machine and returns the id of its running sandbox. The machine replaces `old`, which is deleted or
 * abandoned. Returns undefined if a concurrent call created a machine first.
 */
export async function createMachine(
  app: App,
  user: ToolUser,
  actor: Actor,
  old?: MachineRow,
): Promise<string | undefined> {
  const vm = vmOf(user);
  const labels = { agent: user.agentId, [sessionLabel]: user.sessionId };
  const input = sandboxOf(vm, actor.workspaces[0]?.sandboxTier ?? "free", labels);
  if (!input.success)
    throw new RunFailure(
      "internal",
      "The `vm` of the version is invalid for a sandbox. Publish a version with a valid `vm`.",
    );
  if (old)
    await endSandbox(app, {
      id: old.sandbox_id,
      reason: "requested",
      actor: systemActor("a session's lost machine"),
    });
  try {
    const { id } = await createKept(app, actor, input.data, async (tx, sandboxId) => {
      if (!(await lockLiveSession(tx, user.sessionId)))
        throw new RunFailure("session_ended", "The session was ended.");
      const machine = {
        session_id: user.sessionId,
        workspace_id: user.workspaceId,
        sandbox_id: sandboxId,
        park_after_seconds: vm.park_after_seconds,
        last_used_at: app.clock.now(),
      };
      if (!(await putMachine(tx, machine, old?.sandbox_id))) throw new Overtaken();
    });
    return id;
  } catch (error) {
    if (error instanceof Overtaken) return undefined;
    throw error;
  }
}
