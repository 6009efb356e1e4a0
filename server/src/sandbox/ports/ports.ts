/**
 * Public ports of a sandbox. This folder maps an address to a sandbox; the ingress forwards requests to the machine. A
 * sandbox that does not run, is not exposed or was deleted is never reached. A visit never extends a sandbox's
 * deadline, which its owner sets.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { sandboxTerminated } from "../sandboxes/errors.ts";
import { getSandbox } from "../sandboxes/sandboxes.ts";
import { networkOff, portsNeedCard } from "./errors.ts";
import { hostBase } from "./hosts.ts";

export interface PortHost {
  port: number;
  host: string;
  url: string;
}

/** Exposes a port, also before a program listens on it, and while the sandbox is paused. */
export async function exposePort(
  app: Pick<App, "config" | "db">,
  actor: Actor,
  id: string,
  port: number,
): Promise<PortHost> {
  const row = await getSandbox(app, actor, id);
  if (row.status === "terminated") throw sandboxTerminated(row.termination_reason);
  if (row.network === "off") throw networkOff();
  const base = hostBase(app.config, row);
  if (base === null) throw portsNeedCard(row.sandbox_tier);
  const host = `${port}-${base}`;
  return { port, host, url: `https://${host}` };
}
