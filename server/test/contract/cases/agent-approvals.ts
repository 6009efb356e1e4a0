import { question, requestApprovals } from "#agent/approvals/approvals.ts";
import { newCallId } from "#agent/calls/calls.ts";
import type { World } from "../world.ts";
import { run } from "./agent.ts";
import type { Cases } from "./case.ts";

/** Makes a run that waits for an approval, in the state in which its executor leaves it. */
async function waiting(world: World): Promise<{ run_id: string; request_id: string }> {
  const { run_id } = await run(world);
  const at = new Date();
  const call = { id: newCallId(), tool: "shop__sell", arguments: { id: "7" } };
  const asked = question({
    workspaceId: world.owner.workspaceId,
    runId: run_id,
    call,
    parameters: { type: "object" },
    onExpire: "deny",
    at,
    expiresAt: new Date(at.getTime() + 3_600_000),
  });
  await world.app.db.transaction().execute(async (tx) => {
    const row = { ...call, arguments: JSON.stringify(call.arguments), toolset_id: null, result: null };
    const place = { run_id, step: 1, position: 0, started_at: null, finished_at: null };
    await tx
      .insertInto("agent_tool_calls")
      .values({ ...row, ...place, status: "requested" })
      .execute();
    await requestApprovals(tx, [asked]);
    await tx
      .updateTable("agent_runs")
      .set({ status: "pending_approval", process_id: null, steps: 1 })
      .where("id", "=", run_id)
      .execute();
  });
  return { run_id, request_id: asked.id };
}

export const agentApprovalCases: Cases = {
  listAgentApprovals: { success: () => ({}) },
  decideAgentApproval: {
    success: async (world) => ({ params: await waiting(world), body: { decision: "approve" } }),
    unknown: { run_id: "run_doesnotexist", request_id: "apr_doesnotexist" },
  },
};
