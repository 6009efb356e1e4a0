/** Which hosts a restricted sandbox may reach: its own list where it has one, which replaces the installation's. */
import type { App } from "#app.ts";
import { findAllowDomains } from "./store.ts";

/** By machine, for the egress proxy; undefined where the machine is no restricted sandbox's. */
export async function allowlistOf(
  db: App["db"],
  machine: string,
  defaults: readonly string[],
): Promise<readonly string[] | undefined> {
  const own = await findAllowDomains(db, machine);
  return own === null ? defaults : own;
}
