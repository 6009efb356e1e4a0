/**
 * Parks a run that waits for people. A single transaction stores the run's approvals and waits, and releases the run.
 */
import type { App } from "#app.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import type { AgentConfig } from "#agent/agents/config.ts";
import { question, requestApprovals } from "#agent/approvals/approvals.ts";
import type { Call } from "#agent/calls/calls.ts";
import { insertWaits } from "#agent/oauth/waits/waits.ts";
import type { SignInNeeded } from "#agent/tools/tool.ts";
import type { NewEvent } from "../journal/journal.ts";
import type { RunRow } from "../store.ts";
import type { RunContext } from "./run-context.ts";

/** A call of the last step that cannot continue before a person acts. */
export type BlockedCall =
  | { call: Call; parameters: Record<string, unknown> }
  /** A call that needs a sign-in. The call had no effect and is repeated after the sign-in. */
  | { call: Call; needed: SignInNeeded };

export function waitMinutesOf({ connections }: AgentConfig): number {
  return connections?.wait_minutes ?? 0;
}

export async function parkRun(
  app: App,
  config: AgentConfig,
  { run, blocked, context }: { run: RunRow; blocked: readonly BlockedCall[]; context: RunContext },
): Promise<void> {
  const at = app.clock.now();
  const after = (seconds: number) => new Date(at.getTime() + seconds * 1000);
  const ids = { workspaceId: run.workspace_id, runId: run.id };
  const { expires_in_seconds: seconds, on_expire: onExpire } = config.approvals;
  const questions = blocked.flatMap((one) =>
    "parameters" in one
      ? question({
          ...ids,
          call: callOf(one.call),
          parameters: one.parameters,
          onExpire,
          at,
          expiresAt: after(seconds),
        })
      : [],
  );
  const waits = blocked.flatMap((one) =>
    "needed" in one
      ? [
          {
            ...ids,
            callId: one.call.id,
            needed: one.needed,
            at,
            expiresAt: after(waitMinutesOf(config) * 60),
          },
        ]
      : [],
  );
  const requested = questions.map(({ id, call, expiresAt }) => ({
    type: "approval.requested",
    at,
    data: {
      request_id: id,
      kind: "call",
      call_id: call.id,
      tool: call.tool,
      arguments: call.arguments,
      expires_at: expiresAt.toISOString(),
    },
  }));
  const requestIds = questions.map(({ id }) => id);
  const waiting: NewEvent = {
    type: "run.pending_approval",
    at,
    data: {
      request_id: requestIds[0] ?? null,
      request_ids: requestIds,
      sign_in: [...new Set(waits.map(({ needed }) => needed.toolsetId))],
    },
  };
  const change = { status: "pending_approval", process_id: null } as const;
  await context.writer.commitWith([...requested, waiting], change, async (tx) => {
    await requestApprovals(tx, questions);
    await insertWaits(tx, waits);
  });
  await passKillPoint("agent.approval.raised");
}

function callOf({ id, tool, arguments: values }: Call) {
  return { id, tool, arguments: values as Record<string, unknown> };
}
