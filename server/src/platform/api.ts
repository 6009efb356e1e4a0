/**
 * Lists the routes of the platform API, all under `/api/v1`. Accounts and the other APIs add their sections to the
 * workspace overview.
 */
import { activityRoutes } from "#accounts/activity/routes.ts";
import type { Holding } from "#accounts/holdings.ts";
import { notificationRoutes } from "#accounts/notifications/routes.ts";
import { sessionRoutes } from "#accounts/sessions/routes.ts";
import { userRoutes } from "#accounts/users/routes.ts";
import { teamRoutes } from "#accounts/teams/routes.ts";
import { tokenRoutes } from "#accounts/tokens/routes.ts";
import { findAppImage } from "#builds/app-images.ts";
import type { Route } from "#http/define-route.ts";
import type { App } from "../app.ts";
import type { Addons } from "./addons/addons.ts";
import { addonRoutes } from "./addons/routes.ts";
import { analyzeRoutes } from "./analyze/routes.ts";
import { domainRoutes } from "./domains/routes.ts";
import type { Backups } from "./backups/backups.ts";
import { backupRoutes } from "./backups/routes.ts";
import type { Apps } from "./apps/apps.ts";
import { appRoutes } from "./apps/routes.ts";
import { deploymentRoutes } from "./deployments/routes.ts";
import { environmentRoutes } from "./environments/routes.ts";
import { countFunctions } from "./functions/functions.ts";
import type { FunctionParts } from "./functions/parts.ts";
import { functionRoutes } from "./functions/routes.ts";
import { gitRoutes } from "./git/routes.ts";
import { imageRoutes } from "./images/routes.ts";
import { groupRoutes } from "./groups/routes.ts";
import { metricRoutes } from "./metrics/routes.ts";
import { countProjects } from "./projects/projects.ts";
import { projectRoutes } from "./projects/routes.ts";
import type { WorkspaceSections } from "./workspace/workspace-sections.ts";
import { workspaceRoutes } from "./workspace/routes.ts";

/** Records that keep a team from being deleted. Deleting the team would delete them while apps still run. */
export const platformHoldings: readonly Holding[] = [
  { noun: "projects", count: countProjects },
  { noun: "functions", count: countFunctions },
];

export interface PlatformNeeds extends WorkspaceSections {
  /** Records besides projects that keep a team from being deleted. */
  holdings: readonly Holding[];
  apps: Apps;
  functions: FunctionParts;
  addons: Addons;
  backups: Backups;
}

export const platformRoutes = (app: App, beside: PlatformNeeds): Route[] => [
  ...gitRoutes(app),
  ...projectRoutes(app, beside.apps.routes),
  ...analyzeRoutes(app),
  ...environmentRoutes(app, beside.apps.routes),
  ...imageRoutes(app),
  ...deploymentRoutes(app, { findAppImage }),
  ...groupRoutes(app),
  ...metricRoutes(app),
  ...domainRoutes(app),
  ...workspaceRoutes(app, beside),
  ...appRoutes(beside.apps),
  ...functionRoutes(app, beside.functions),
  ...addonRoutes(beside.addons),
  ...backupRoutes(beside.backups),
  ...activityRoutes(app),
  ...notificationRoutes(app),
  ...tokenRoutes(app),
  ...teamRoutes(app, [...platformHoldings, ...beside.holdings]),
  ...userRoutes(app, [...platformHoldings, ...beside.holdings]),
  ...sessionRoutes(app),
];
