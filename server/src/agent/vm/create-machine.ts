/** A machine is made: the sandbox's row and the row that says whose it is are one transaction. */
import type { Actor } from "#accounts/actor.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { createKept } from "#sandbox/sandboxes/lifecycle/create.ts";
import { endSandbox } from "#sandbox/sandboxes/lifecycle/terminate.ts";
import { RunFailure } from "../runs/engine/run-failure.ts";
import type { ToolUser } from "../tools/tool.ts";
import { sandboxOf, vmOf } from "./config.ts";
import { holdSession, type MachineRow, putMachine } from "./store.ts";

/** On the sandbox: whose machine it is. */
export const sessionLabel = "agent_session";

/** Somebody else made one first. */
class Overtaken extends Error {}

/** The sandbox, which runs when this returns. In place of `old`, which is gone or given up. Undefined where somebody else was first. */
export async function makeMachine(
  app: App,
  user: ToolUser,
  actor: Actor,
  old?: MachineRow,
): Promise<string | undefined> {
  const vm = vmOf(user);
  const labels = { agent: user.agentId, [sessionLabel]: user.sessionId };
  const input = sandboxOf(vm, actor.workspaces[0]?.sandboxTier ?? "free", labels);
  if (!input.success) throw new RunFailure("internal", "The version's `vm` makes no sandbox.");
  if (old)
    await endSandbox(app, {
      id: old.sandbox_id,
      reason: "requested",
      actor: systemActor("a session's lost machine"),
    });
  try {
    const { id } = await createKept(app, actor, input.data, async (tx, sandboxId) => {
      if (!(await holdSession(tx, user.sessionId)))
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
