/**
 * Environment variables with the connection URLs of add-ons. The oldest add-on of a kind gets the kind's own variable,
 * `DATABASE_URL` or `REDIS_URL`. The variable of a later add-on begins with the add-on's name: `ORDERS_DATABASE_URL`.
 * So a new add-on renames no variable. When the oldest add-on is deleted, the next one gets the kind's variable.
 */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { engines } from "../engines/engines.ts";
import type { Kind } from "../engines/engine.ts";
import { type AddonView, listFor } from "../store.ts";
import { connectionUrl } from "./urls.ts";

/**
 * Returns the variables of an environment's add-ons. Add-ons that do not run yet are included: a process that starts
 * first waits for its database.
 */
export async function addonVariables(
  app: Pick<App, "secrets">,
  db: Db,
  environmentId: string,
): Promise<Record<string, string>> {
  return variablesFrom(await listFor(db, environmentId), (row) => connectionUrl(app, row));
}

/** Returns the variables of these add-ons. `rows` are sorted oldest first. */
export function variablesFrom<Row extends Pick<AddonView, "kind" | "name">>(
  rows: readonly Row[],
  urlOf: (row: Row) => string,
): Record<string, string> {
  const seen = new Set<Kind>();
  return Object.fromEntries(
    rows.map((row) => {
      const { variable } = engines[row.kind];
      const name = seen.has(row.kind) ? `${prefixOf(row.name)}_${variable}` : variable;
      seen.add(row.kind);
      return [name, urlOf(row)];
    }),
  );
}

function prefixOf(name: string): string {
  return name.toUpperCase().replaceAll("-", "_");
}
