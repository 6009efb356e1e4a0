/** Private host names and connection URLs of add-ons. */
import type { App } from "#app.ts";
import { engines } from "../engines/engines.ts";
import { openPassword } from "./password.ts";
import type { AddonView } from "../store.ts";

/** Returns the add-on's host name in the workspace's private network. */
export function privateHost({ name, project_name }: Pick<AddonView, "name" | "project_name">): string {
  return `${name}.${project_name}.internal`;
}

export function connectionUrl(app: Pick<App, "secrets">, row: AddonView): string {
  const { port } = engines[row.kind];
  return urlAt(app, row, { host: privateHost(row), port, isTls: false });
}

export function urlAt(
  app: Pick<App, "secrets">,
  row: AddonView,
  place: { host: string; port: number; isTls: boolean },
): string {
  const { kind, username, database, options, is_made: isMade } = row;
  const password = openPassword(app, row);
  return engines[kind].url(place, { username, database, password, options, isMade });
}
