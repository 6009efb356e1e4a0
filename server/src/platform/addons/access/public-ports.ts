/** Public ports of add-ons: their range, their host name, and whether they require TLS. */
import { isIP } from "node:net";
import type { App } from "#app.ts";
import type { Config } from "#config.ts";
import type { Transaction } from "#schema.ts";
import { isLoopback, parsePorts } from "#lib/network/addresses.ts";
import { noPublicPort } from "../errors.ts";
import { type AddonView, lockPublicPorts } from "../store.ts";
import { urlAt } from "./urls.ts";

/** True if public ports need TLS. A loopback port is reachable from this host only, so it needs none. */
export function needsTls({ addonsHost }: Pick<Config, "addonsHost">): boolean {
  return !isLoopback(addonsHost);
}

/** Returns the host name of connection URLs and of the certificate. */
export function publicName({
  addonsHost,
  addonsPublicName,
  publicUrl,
}: Pick<Config, "addonsHost" | "addonsPublicName" | "publicUrl">): string {
  if (addonsPublicName !== null) return addonsPublicName;
  const isAnywhere = addonsHost === "0.0.0.0" || addonsHost === "::";
  if (!isAnywhere) return isIP(addonsHost) === 6 ? `[${addonsHost}]` : addonsHost;
  return publicUrl === null ? "localhost" : new URL(publicUrl).hostname;
}

/** Returns the lowest free port. `tx` must be the transaction that stores the port. Throws `no_public_port`. */
export async function takePublicPort({ config }: Pick<App, "config">, tx: Transaction): Promise<number> {
  const taken = await lockPublicPorts(tx);
  const { first, last } = parsePorts(config.addonsPorts)!;
  for (let port = first; port <= last; port += 1) if (!taken.has(port)) return port;
  throw noPublicPort(last - first + 1);
}

/** Returns the connection URL of the public port; null while the add-on is not public. */
export function publicConnectionUrl(app: Pick<App, "config" | "secrets">, row: AddonView): string | null {
  const { public_port: port } = row;
  if (port === null) return null;
  return urlAt(app, row, { host: publicName(app.config), port, isTls: needsTls(app.config) });
}
