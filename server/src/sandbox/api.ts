/** Every operation of the sandbox API. */
import type { Holding } from "#accounts/holdings.ts";
import type { App } from "#app.ts";
import type { Route } from "#http/define-route.ts";
import { codeRoutes } from "./code/routes.ts";
import { commandRoutes } from "./commands/routes.ts";
import { eventRoutes } from "./events/routes.ts";
import { execRoutes } from "./exec/routes.ts";
import { fileRoutes } from "./files/routes.ts";
import { ptyRoutes } from "./pty/routes.ts";
import { portRoutes } from "./ports/routes.ts";
import { countLive } from "./sandboxes/sandboxes.ts";
import { liveSandboxes } from "./sandboxes/overview.ts";
import { sandboxesRoutes } from "./sandboxes/routes.ts";
import { snapshotRoutes } from "./snapshots/routes.ts";
import { countSnapshots } from "./snapshots/snapshots.ts";
import { templateRoutes } from "./templates/routes.ts";
import { countTemplates } from "./templates/templates.ts";
import { volumeRoutes } from "./volumes/routes.ts";
import { countVolumes } from "./volumes/volumes.ts";
import { webhookRoutes } from "./webhooks/routes.ts";

/**
 * Resources that block the deletion of a team. Deleting the team would delete these records while their machines run
 * and their files exist.
 */
export const sandboxHoldings: readonly Holding[] = [
  { noun: "sandboxes", count: countLive },
  { noun: "snapshots", count: countSnapshots },
  { noun: "templates", count: countTemplates },
  { noun: "volumes", count: countVolumes },
];

/** Sandboxes in the workspace snapshot. */
export const sandboxSections = { sandboxes: liveSandboxes };

export const sandboxRoutes = (app: App): Route[] => [
  ...sandboxesRoutes(app),
  ...snapshotRoutes(app),
  ...templateRoutes(app),
  ...volumeRoutes(app),
  ...webhookRoutes(app),
  ...eventRoutes(app),
  ...execRoutes(app),
  ...codeRoutes(app),
  ...commandRoutes(app),
  ...ptyRoutes(app),
  ...fileRoutes(app),
  ...portRoutes(app),
];
