/** Puts the ingress together: the host names, the site that serves each, and the certificates. */
import { isIP } from "node:net";
import { join } from "node:path";
import { AppSites } from "#ingress/sites/apps.ts";
import { FunctionSites } from "#ingress/sites/functions.ts";
import { Ingress } from "#ingress/ingress.ts";
import { PreviewSites } from "#ingress/sites/previews.ts";
import { handlerSites, type HostRule } from "#ingress/sites/site.ts";
import { AcmeCertificates } from "#ingress/tls/acme.ts";
import type { Certificates } from "#ingress/tls/certificates.ts";
import { LocalCertificates } from "#ingress/tls/local.ts";
import { Upstreams } from "#ingress/sites/upstreams.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import type { Addons } from "#platform/addons/addons.ts";
import type { Apps } from "#platform/apps/apps.ts";
import { RequestLog } from "#platform/apps/output/request-log.ts";
import { wake } from "#platform/apps/running/wake.ts";
import { ServedDomains } from "#platform/domains/served-domains.ts";
import type { FunctionInstances } from "#platform/instances/instances.ts";
import { RequestRecorder } from "#platform/metrics/recorder.ts";
import { transferHandler } from "#sandbox/files/transfer-routes.ts";
import { idOf } from "#sandbox/ports/hosts.ts";
import { VisitedSandboxes } from "#sandbox/ports/visitor-targets.ts";
import { findForVisitors } from "#sandbox/sandboxes/sandboxes.ts";
import type { App } from "#app.ts";
import { type Config, hostname } from "#config.ts";

export interface OpenedIngress {
  ingress: Ingress;
  /** Null if TLS is off. */
  certificates: Certificates | null;
  start(): Promise<void>;
  /** Writes the last counts of visitors. */
  close(): Promise<void>;
}

export async function openIngress(
  app: App,
  { apps, functions, addons }: { apps: Apps; functions: FunctionInstances; addons: Addons },
): Promise<OpenedIngress> {
  const { config, log } = app;
  const [preview, appsDomain] = [hostname(config.previewDomain), hostname(config.appsDomain)];
  const sandboxes = new VisitedSandboxes(app);
  const upstreams = new Upstreams((machine, port) => sandboxes.connect(machine, port));
  app.machines.onRemoval((machine) => upstreams.end(machine));
  // A kept connection to a frozen machine would accept requests without a response.
  app.machines.suspension.onHold((machine) => upstreams.end(machine));
  const transfer = transferHandler(app);
  const requests = new RequestRecorder(app);
  const siteRequests = new RequestLog(apps);
  const domains = new ServedDomains(app);
  const sites = new AppSites({
    domain: appsDomain,
    apps: {
      find: (host) => {
        const route = apps.routes.find(host);
        const isSuspended = route && app.machines.suspension.isHeld(route.workspaceId);
        return isSuspended ? { ...route, state: "suspended" } : route;
      },
      wake: (environment) => wake(apps, environment),
      recordResponse: (environment, seen) => {
        requests.observed(environment, seen);
        siteRequests.observed(environment, seen);
      },
    },
    custom: domains,
    upstreams,
  });
  const rules: HostRule[] = [
    handlerSites({
      prefix: "files",
      domain: preview,
      exists: async (name) => (await findForVisitors(app, idOf(name))) !== undefined,
      handle: (name, request, response) => transfer(idOf(name), request, response),
    }),
    new PreviewSites({ domain: preview, previews: sandboxes, upstreams }),
    new FunctionSites({ domain: appsDomain, functions, upstreams }),
    sites,
  ];
  const isServed = async (host: string) => host === config.addonsPublicName || ingress.isServed(host);
  const certificates = await modes[config.tlsMode]({ config, log, isServed });
  const ingress: Ingress = new Ingress({
    rules,
    domains: [`sbx.${preview}`, appsDomain],
    apiHost: apiHost(config),
    certificates,
    tlsSuffix: config.previewDomain.slice(preview.length),
    trustedProxies: parseOpenedHosts(config.trustedProxies).ranges,
    log: (event, fields) => log.warn(fields, event),
  });
  apps.serveThrough({
    drained: (machine, timeoutMs) => sites.waitUntilDrained(machine, timeoutMs),
    visit: (host, path, expected) => ingress.probe(host, path, expected),
  });
  return {
    ingress,
    certificates,
    async start() {
      await domains.start();
      requests.start();
      addons.publicPorts.useCertificates(async (name) => certificates?.contextFor(name));
    },
    async close() {
      await domains.stop();
      await requests.stop();
      siteRequests.flush();
    },
  };
}

/** Host of `public_url`, under which browsers reach the APIs and the console; null if there is none. */
function apiHost({ publicUrl }: Config): string | null {
  return publicUrl === null ? null : new URL(publicUrl).hostname;
}

type Opening = Pick<App, "config" | "log"> & { isServed: (host: string) => Promise<boolean> };

const modes: Record<Config["tlsMode"], (opening: Opening) => Promise<Certificates | null>> = {
  local: ({ config }) => {
    const [preview, apps] = [hostname(config.previewDomain), hostname(config.appsDomain)];
    const others = [apiHost(config), config.addonsPublicName].filter((name) => name !== null);
    const names = ["localhost", preview, apps, ...others];
    return LocalCertificates.open(config.dataDir, {
      domains: [...new Set(names)].filter((name) => isIP(name) === 0),
      wildcards: [`*.sbx.${preview}`, `*.${apps}`, `*.fn.${apps}`],
    });
  },
  acme: ({ config, log, isServed }) =>
    AcmeCertificates.open({
      directory: join(config.dataDir, "certificates"),
      directoryUrl: config.acmeDirectory,
      email: config.acmeEmail,
      isServed,
      log: (event, fields) => log.info(fields, event),
    }),
  off: async () => null,
};
