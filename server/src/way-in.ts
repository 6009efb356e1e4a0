/** Puts the ingress together: which names there are, who serves each, and who vouches for them. */
import { Ingress } from "#ingress/ingress.ts";
import { PreviewSites } from "#ingress/previews.ts";
import { handlerSites, type HostRule } from "#ingress/sites.ts";
import type { Certificates } from "#ingress/tls/certificates.ts";
import { LocalCertificates } from "#ingress/tls/local.ts";
import { Upstreams } from "#ingress/upstreams.ts";
import { parseOpenedHosts } from "#lib/addresses.ts";
import { transferHandler } from "#sandbox/files/transfer-routes.ts";
import { idOf } from "#sandbox/ports/hosts.ts";
import { VisitedSandboxes } from "#sandbox/ports/visited.ts";
import { findForVisitors } from "#sandbox/sandboxes/sandboxes.ts";
import type { App } from "./app.ts";
import { type Config, hostname } from "./config.ts";

export async function openIngress(app: App): Promise<Ingress> {
  const { config, log } = app;
  const preview = hostname(config.previewDomain);
  const sandboxes = new VisitedSandboxes(app);
  const upstreams = new Upstreams((machine, port) => sandboxes.connect(machine, port));
  app.machines.onGoing((machine) => upstreams.end(machine));
  const transfer = transferHandler(app);
  const rules: HostRule[] = [
    handlerSites({
      prefix: "files",
      domain: preview,
      exists: async (name) => (await findForVisitors(app, idOf(name))) !== undefined,
      handle: (name, request, response) => transfer(idOf(name), request, response),
    }),
    new PreviewSites({ domain: preview, previews: sandboxes, upstreams }),
  ];
  return new Ingress({
    rules,
    domains: [`sbx.${preview}`],
    certificates: await openCertificates(config),
    trustedProxies: parseOpenedHosts(config.trustedProxies).ranges,
    log: (event, fields) => log.warn(fields, event),
  });
}

async function openCertificates(config: Config): Promise<Certificates | null> {
  if (config.tlsMode !== "local") return null;
  const [preview, apps] = [hostname(config.previewDomain), hostname(config.appsDomain)];
  return LocalCertificates.open(config.dataDir, {
    domains: [...new Set(["localhost", preview, apps])],
    wildcards: [`*.sbx.${preview}`, `*.${apps}`, `*.fn.${apps}`],
  });
}
