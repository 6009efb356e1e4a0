/**
 * Environment variables with the connection URLs of add-ons. The oldest add-on of a kind gets the kind's own variable,
 * `DATABASE_URL` or `REDIS_URL`. A later one has its name in front: `ORDERS_DATABASE_URL`. So a new add-on renames no
 * variable; when the oldest is deleted, the next one gets the kind's variable.
 */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { engines } from "../engines/engines.ts";
import type { Kind } from "../engines/engine.ts";
import { type AddonView, listFor } from "../store.ts";
import { connectionUrl } from "./urls.ts";

/** Includes add-ons that do not run yet: a process that starts first waits for them. */
export async function addonVariables(
  app: Pick<App, "secrets">,
  db: Db,
  environmentId: string,
): Promise<Record<string, string>> {
  return variablesFrom(await listFor(db, environmentId), (row) => connectionUrl(app, row));
}

/** `rows` are sorted oldest first. */
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
