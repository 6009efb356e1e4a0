/**
 * Ports of a sandbox, served to whoever has the address. This folder says what the address is and who stands behind
 * it; the way a request takes from there to the machine is the ingress's. It promises that what is not running, not
 * exposed or not there any more is never reached, and it never extends a sandbox's life: its deadline is its owner's.
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

/** A name can be had before anything listens, and while the sandbox is paused. */
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
