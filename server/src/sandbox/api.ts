/** Every operation of the sandbox API that this server has. */
import type { Holding } from "#accounts/holdings.ts";
import type { App } from "#app.ts";
import type { Route } from "#http/define-route.ts";
import { commandRoutes } from "./commands/routes.ts";
import { eventRoutes } from "./events/routes.ts";
import { execRoutes } from "./exec/routes.ts";
import { fileRoutes } from "./files/routes.ts";
import { countLive } from "./sandboxes/sandboxes.ts";
import { sandboxesRoutes } from "./sandboxes/routes.ts";
import { webhookRoutes } from "./webhooks/routes.ts";

/** Deleting a team would take their records away under machines that run. */
export const sandboxHoldings: readonly Holding[] = [{ noun: "sandboxes", count: countLive }];

export const sandboxRoutes = (app: App): Route[] => [
  ...sandboxesRoutes(app),
  ...webhookRoutes(app),
  ...eventRoutes(app),
  ...execRoutes(app),
  ...commandRoutes(app),
  ...fileRoutes(app),
];
