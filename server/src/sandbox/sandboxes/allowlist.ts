/** Hosts that a restricted sandbox may reach. A sandbox's own list replaces the installation's default. */
import type { App } from "#app.ts";
import { findAllowDomains } from "./store.ts";

/**
 * Looks up the list of a machine for the egress proxy; undefined if no restricted sandbox has the machine.
 */
export async function allowlistOf(
  db: App["db"],
  machine: string,
  defaults: readonly string[],
): Promise<readonly string[] | undefined> {
  const own = await findAllowDomains(db, machine);
  return own === null ? defaults : own;
}
