/** The HTTP server of the three APIs, and the ports on which this server and the ingress listen. */
import { setTimeout as sleep } from "node:timers/promises";
import { accessLogOf } from "#accounts/activity/access-log.ts";
import { findActor, findActors } from "#accounts/find-actor.ts";
import { withLimitNotifications } from "#accounts/notifications/limits.ts";
import { workspaceOf } from "#accounts/suspension/workspace-of.ts";
import { agentSites } from "#agent/api.ts";
import { ownApi } from "#agent/workers/api.ts";
import type { OwnApi } from "#agent/workers/workers.ts";
import type { App } from "#app.ts";
import { type Config, inheritedSockets } from "#config.ts";
import { createHttpServer, type HttpServer } from "#http/server.ts";
import type { Ingress } from "#ingress/ingress.ts";
import { downloadSite } from "#platform/backups/site-routes.ts";
import { gitSite } from "#platform/git/hosting/hosting-routes.ts";
import { apiRoutes } from "./apis.ts";
import { introductions } from "./introductions.ts";
import type { Parts } from "./parts.ts";

/**
 * Time between the start of a drain and the close of idle connections. Meanwhile each response closes its connection;
 * an earlier close could break a request.
 */
const farewellMs = 300;

export interface OpenedHttp {
  http: HttpServer;
  /** The server's own API, for agents that act on the platform. */
  ownApi: OwnApi;
}

export async function openHttp(app: App, parts: Parts, ingress: Ingress): Promise<OpenedHttp> {
  const { db, machines } = app;
  const { platform, sandbox, agent } = apiRoutes(app, parts);
  const routes = {
    platform: withLimitNotifications(app, platform),
    sandbox: withLimitNotifications(app, sandbox),
    agent: withLimitNotifications(app, agent),
  };
  const http = await createHttpServer(app, routes, {
    findActor: (credential) => findActor(app, credential),
    findActors: (credentials) => findActors(app, credentials),
    workspaceOf: (actor, target) => workspaceOf(db, actor, target),
    readiness: async () => ({
      ready: true,
      templates: machines.images.status(),
      images: parts.preparedImages.status(),
    }),
    front: ingress,
    introductions,
    noteAccess: (note) => accessLogOf(app).note(note),
    raw: [gitSite(app, parts.pushes), downloadSite(parts.backups), ...agentSites(app)],
  });
  return { http, ownApi: ownApi(routes, http) };
}

/** Listens on the inherited sockets, or else on the configured ports. */
export async function listen(
  config: Config,
  http: HttpServer,
  ingress: Ingress,
): Promise<{ port: number; tlsPort: number | undefined }> {
  const [plain, tls] = inheritedSockets();
  const port = await http.listen({ host: config.host, port: config.port, ...onSocket(plain) });
  const tlsPort = await ingress.listenTls({ host: config.host, port: config.tlsPort, ...onSocket(tls) });
  return { port, tlsPort };
}

/** Ends requests and jobs within one grace period, because a request may wait for a job. */
export async function drain(
  { jobs }: Pick<App, "jobs">,
  http: HttpServer,
  ingress: Ingress,
  graceMs: number,
): Promise<void> {
  http.startDraining();
  ingress.startDraining();
  await sleep(farewellMs);
  await Promise.all([http.close(graceMs), ingress.close(graceMs), jobs.stop(graceMs)]);
}

function onSocket(fd: number | undefined): { fd?: number } {
  return fd === undefined ? {} : { fd };
}
