import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { runNotFound } from "../runs/api/run-errors.ts";
import type { RunExecutor } from "../runs/engine/run-executor.ts";
import { Run } from "../runs/schema.ts";
import { list } from "./approvals.ts";
import { decide } from "./decide.ts";
import { approvalDecided, approvalExpired, approvalNotFound } from "./errors.ts";
import { ApprovalList, ApprovalParams, Decide } from "./schema.ts";

const common = { api: "agent", tag: "Approvals" } as const;

export const approvalRoutes = (app: App, runs: RunExecutor): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agents/approvals",
    operationId: "listAgentApprovals",
    summary: "List pending approvals",
    description: "Returns at most 100 approvals, newest first. `total` counts all pending approvals.",
    scope: "agents:read",
    extension: true,
    responses: { 200: ApprovalList },
    handler: ({ actor }) => list(app, actor),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agents/runs/{run_id}/approvals/{request_id}",
    operationId: "decideAgentApproval",
    summary: "Approve or deny a tool call",
    description:
      "Decides one call and returns the run. The run continues when its last pending approval is decided. An approved call runs with the requested arguments, or with `arguments` if given. The model reads a denial with its `reason`. With `wait_s`, the response is the run when it next stops. A repeat of the same decision changes nothing; a different one returns 409 `approval_decided`.",
    scope: "agents:invoke",
    params: ApprovalParams,
    body: Decide,
    responses: { 200: Run },
    errors: [runNotFound, approvalNotFound, approvalDecided, approvalExpired],
    handler: ({ actor, params, body }) => decide(app, runs, actor, params, body),
  }),
];
