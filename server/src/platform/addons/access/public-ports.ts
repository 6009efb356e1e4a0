/** Where add-ons are reached from outside: which ports there are, by which name, and whether it has to be by TLS. */
import { isIP } from "node:net";
import type { App } from "#app.ts";
import type { Config } from "#config.ts";
import type { Transaction } from "#schema.ts";
import { isLoopback, parsePorts } from "#lib/network/addresses.ts";
import { noPublicPort } from "../errors.ts";
import { type AddonView, lockPublicPorts } from "../store.ts";
import { urlAt } from "./urls.ts";

/** Whoever listens on loopback alone is heard by this host alone: nobody is between. */
export function needsTls({ addonsHost }: Pick<Config, "addonsHost">): boolean {
  return !isLoopback(addonsHost);
}

/** The name that stands in addresses, and in the certificate. */
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

/** The lowest port that is free, in the transaction that says who has it. Throws `no_public_port`. */
export async function takePublicPort({ config }: Pick<App, "config">, tx: Transaction): Promise<number> {
  const taken = await lockPublicPorts(tx);
  const { first, last } = parsePorts(config.addonsPorts)!;
  for (let port = first; port <= last; port += 1) if (!taken.has(port)) return port;
  throw noPublicPort(last - first + 1);
}

/** Null while it is not public. */
export function publicConnectionUrl(app: Pick<App, "config" | "secrets">, row: AddonView): string | null {
  const { public_port: port } = row;
  if (port === null) return null;
  return urlAt(app, row, { host: publicName(app.config), port, isTls: needsTls(app.config) });
}
