/** The routes of the three APIs, for the server and for the contract tests. */
import { agentSections, agentRoutes } from "#agent/api.ts";
import type { RunExecutor } from "#agent/runs/engine/run-executor.ts";
import type { App } from "#app.ts";
import type { Routes } from "#http/server.ts";
import type { Addons } from "#platform/addons/addons.ts";
import { platformRoutes } from "#platform/api.ts";
import type { Apps } from "#platform/apps/apps.ts";
import type { Backups } from "#platform/backups/backups.ts";
import type { FunctionInstances } from "#platform/instances/instances.ts";
import { sandboxSections, sandboxHoldings, sandboxRoutes } from "#sandbox/api.ts";

export interface ApiParts {
  apps: Apps;
  functions: FunctionInstances;
  addons: Addons;
  backups: Backups;
  agentRuns: RunExecutor;
}

export function apiRoutes(app: App, { apps, functions, addons, backups, agentRuns }: ApiParts): Routes {
  return {
    platform: platformRoutes(app, {
      holdings: sandboxHoldings,
      ...sandboxSections,
      ...agentSections,
      apps,
      functions,
      addons,
      backups,
    }),
    sandbox: sandboxRoutes(app),
    agent: agentRoutes(app, agentRuns),
  };
}
