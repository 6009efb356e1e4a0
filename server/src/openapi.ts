/**
 * Writes the three OpenAPI documents under openapi/ from the routes, or checks that the committed documents match:
 *
 *     node server/src/openapi.ts --write | --check
 *
 * The program needs no database and no machines, because it calls no route.
 */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { agentSections, agentRoutes } from "#agent/api.ts";
import { RunExecutor } from "#agent/runs/engine/run-executor.ts";
import type { Api, Route } from "#http/define-route.ts";
import { openApiDocument } from "#http/documents/openapi.ts";
import { systemClock } from "#lib/clock.ts";
import { platformRoutes } from "#platform/api.ts";
import { FunctionInstances } from "#platform/instances/instances.ts";
import { Addons } from "#platform/addons/addons.ts";
import { Backups } from "#platform/backups/backups.ts";
import { openBlobs } from "#platform/backups/blobs.ts";
import { Apps } from "#platform/apps/apps.ts";
import { sandboxSections, sandboxRoutes } from "#sandbox/api.ts";
import type { App } from "./app.ts";
import { loadConfig } from "./config.ts";
import { introductions } from "./compose/introductions.ts";

const folder = resolve(import.meta.dirname, "../../openapi");

/**
 * Returns every route of the server. No handler can run, because the app has only the configuration's defaults and a
 * clock.
 */
export function allRoutes(): Record<Api, Route[]> {
  const app = { config: loadConfig({ env: {} }), clock: systemClock } as App;
  const addons = new Addons(app);
  return {
    platform: platformRoutes(app, {
      holdings: [],
      ...sandboxSections,
      ...agentSections,
      apps: new Apps(app),
      functions: new FunctionInstances(app),
      addons,
      backups: new Backups(app, addons, openBlobs(app.config)),
    }),
    sandbox: sandboxRoutes(app),
    agent: agentRoutes(app, new RunExecutor(app)),
  };
}

/**
 * Returns the text of each document by its file name: pretty-printed, in the order of the routes, with a final line
 * break.
 */
function documents(): Map<string, string> {
  return new Map(
    Object.entries(allRoutes()).map(([api, routes]) => [
      `${api}.json`,
      `${JSON.stringify(openApiDocument(api as Api, routes, introductions[api as Api]), null, 2)}\n`,
    ]),
  );
}

/** Returns the names of the committed documents that differ from the routes. */
export function staleDocuments(): string[] {
  return [...documents()].filter(([name, text]) => read(name) !== text).map(([name]) => name);
}

function read(name: string): string | undefined {
  try {
    return readFileSync(join(folder, name), "utf8");
  } catch {
    return undefined;
  }
}

function main(argument: string | undefined): number {
  if (argument === "--write") {
    mkdirSync(folder, { recursive: true });
    for (const [name, text] of documents()) writeFileSync(join(folder, name), text);
    return 0;
  }
  if (argument === "--check") {
    const stale = staleDocuments();
    for (const name of stale) {
      console.error(`openapi/${name} differs from the routes; run: node server/src/openapi.ts --write`);
    }
    return stale.length > 0 ? 1 : 0;
  }
  console.error("usage: node server/src/openapi.ts --write | --check");
  return 2;
}

if (import.meta.main) process.exitCode = main(process.argv[2]);
