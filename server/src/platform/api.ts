/** The platform API: every route under `/api/v1`. `holdings`: what keeps a team from being deleted. */
import { activityRoutes } from "#accounts/activity/routes.ts";
import type { Holding } from "#accounts/holdings.ts";
import { sessionRoutes } from "#accounts/sessions/routes.ts";
import { teamRoutes } from "#accounts/teams/routes.ts";
import { tokenRoutes } from "#accounts/tokens/routes.ts";
import type { Route } from "#http/define-route.ts";
import type { App } from "../app.ts";

export const platformRoutes = (app: App, holdings: readonly Holding[]): Route[] => [
  ...activityRoutes(app),
  ...tokenRoutes(app),
  ...teamRoutes(app, holdings),
  ...sessionRoutes(app),
];
