/** Every operation of the sandbox API that this server has. */
import type { App } from "#app.ts";
import type { Route } from "#http/define-route.ts";
import { execRoutes } from "./exec/routes.ts";
import { fileRoutes } from "./files/routes.ts";
import { sandboxesRoutes } from "./sandboxes/routes.ts";

export const sandboxRoutes = (app: App): Route[] => [
  ...sandboxesRoutes(app),
  ...execRoutes(app),
  ...fileRoutes(app),
];
