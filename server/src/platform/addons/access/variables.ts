/**
 * What add-ons give the processes of an environment: their addresses. The oldest of a kind has the kind's own name,
 * `DATABASE_URL` or `REDIS_URL`; a later one its own before that, `ORDERS_DATABASE_URL`. So none changes its name when
 * another comes; when the oldest goes, the next one has the kind's.
 */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { engines } from "../engines/engines.ts";
import type { Kind } from "../engines/engine.ts";
import { type AddonView, listFor } from "../store.ts";
import { connectionUrl } from "./urls.ts";

/** Also of add-ons that do not run yet: whoever starts first waits for them. */
export async function addonVariables(
  app: Pick<App, "secrets">,
  db: Db,
  environmentId: string,
): Promise<Record<string, string>> {
  return variablesFrom(await listFor(db, environmentId), (row) => connectionUrl(app, row));
}

/** `rows` are the oldest first. */
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
