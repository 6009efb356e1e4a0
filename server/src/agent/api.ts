/** All operations of the agent runtime API. */
import type { App } from "#app.ts";
import type { Route } from "#http/define-route.ts";
import { workers } from "./agents/overview.ts";
import { agentsRoutes } from "./agents/routes.ts";
import { pendingApprovals } from "./approvals/approvals.ts";
import { approvalRoutes } from "./approvals/routes.ts";
import { connectionRoutes } from "./oauth/routes.ts";
import { connectSite } from "./oauth/flow/site-routes.ts";
import { credentialRoutes } from "./credentials/routes.ts";
import { endUserRoutes } from "./end-users/routes.ts";
import { memoryRoutes } from "./memory/routes.ts";
import { runRoutes } from "./runs/routes.ts";
import type { RunExecutor } from "./runs/engine/run-executor.ts";
import { scheduleRoutes } from "./schedules/routes.ts";
import { sessionRoutes } from "./sessions/routes.ts";
import { toolsetRoutes } from "./toolsets/routes.ts";
import { usageRoutes } from "./usage/routes.ts";
import { webhookRoutes } from "./webhooks/routes.ts";

/** Sections that the Agent API adds to a workspace's snapshot. */
export const agentSections = { workers, pendingApprovals };

export const agentRoutes = (app: App, runs: RunExecutor): Route[] => [
  ...runRoutes(app, runs),
  ...approvalRoutes(app, runs),
  ...sessionRoutes(app, runs),
  ...agentsRoutes(app),
  ...endUserRoutes(app, runs),
  ...memoryRoutes(app),
  ...usageRoutes(app),
  ...toolsetRoutes(app),
  ...connectionRoutes(app),
  ...credentialRoutes(app),
  ...scheduleRoutes(app),
  ...webhookRoutes(app, runs),
];

/** HTTP sites that this server serves outside the API. */
export const agentSites = (app: App) => [connectSite(app)];
