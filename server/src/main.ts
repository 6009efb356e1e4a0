/**
 * The server. `compose/` puts it together: `app.ts` opens what all APIs need, `parts.ts` creates the long-lived objects
 * of the APIs, and `services.ts` starts the services in order. The first SIGTERM, SIGINT or SIGHUP stops them in
 * reverse order.
 */
import { openApp } from "./compose/app.ts";
import { openHttp } from "./compose/http.ts";
import { openIngress } from "./compose/ingress.ts";
import { makeParts } from "./compose/parts.ts";
import { services, startServices } from "./compose/services.ts";
import { Shutdown } from "./compose/shutdown.ts";
import { type Config, ConfigError, loadServerConfig } from "./config.ts";
import { createLog } from "./lib/log.ts";

const startedAt = new Date();
const config = readConfig();
const log = createLog({ level: config.logLevel, format: config.logFormat });
const running = new AsyncDisposableStack();
const shutdown = new Shutdown({ running, log, graceMs: config.shutdownGraceSeconds * 1000 });
shutdown.listen();

try {
  const opened = await openApp(config, log, running);
  const parts = makeParts(opened.app, opened.hostId);
  const ingress = await openIngress(opened.app, parts);
  const http = await openHttp(opened.app, parts, ingress.ingress);
  const kontor = { ...opened, ...http, parts, ingress, startedAt, graceMs: () => shutdown.graceMs };
  await startServices(services(kontor), running);
} catch (error) {
  await shutdown.failStart(error);
}

function readConfig(): Config {
  try {
    return loadServerConfig();
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    process.stderr.write(`The configuration does not fit:\n  ${error.problems.join("\n  ")}\n`);
    process.exit(1);
  }
}
