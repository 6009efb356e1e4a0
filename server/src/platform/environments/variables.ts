/**
 * Environment variables, encrypted in the row of their owner. Variables are decrypted only for an explicit request, and
 * for the process that gets them. An environment's variables override its project's, which override those of add-ons.
 */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { isMaskOf } from "#lib/secret-hint.ts";
import { addonVariables } from "../addons/access/variables.ts";
import { environmentNotFound, tooManyVariables } from "./errors.ts";
import { findSealed } from "./store.ts";

export type Variables = Record<string, string>;

/** Table with the owner's row. The ciphertext is bound to that row. */
type Owner = "projects" | "environments" | "functions";

type Needs = Pick<App, "secrets">;

const maxVariables = 200;
/** Limit of all names and values in bytes. Each pair counts two bytes more, which a process needs for it. */
const maxVariablesBytes = 64 * 1024;

/** Returns the variables with which a process of the environment starts. */
export async function variablesOf(app: Needs, db: Db, environmentId: string): Promise<Variables> {
  const row = await findSealed(db, environmentId);
  if (!row) throw environmentNotFound();
  return {
    ...(await addonVariables(app, db, environmentId)),
    ...openVariables(app, "projects", { id: row.project_id, env_sealed: row.project_env_sealed }),
    ...openVariables(app, "environments", row),
  };
}

/** Returns the encrypted variables; null if there are none. */
export function sealVariables(app: Needs, owner: Owner, id: string, variables: Variables): Buffer | null {
  if (Object.keys(variables).length === 0) return null;
  return app.secrets.seal(JSON.stringify(variables), place(owner, id));
}

export function openVariables(
  app: Needs,
  owner: Owner,
  row: { id: string; env_sealed: Buffer | null },
): Variables {
  if (!row.env_sealed) return {};
  return JSON.parse(app.secrets.open(row.env_sealed, place(owner, row.id)).toString()) as Variables;
}

/**
 * Returns the variables after a change. A string sets a variable, null removes it, and a mask keeps the stored value.
 * Throws `too_many_variables`.
 */
export function mergeVariables(variables: Variables, change: Record<string, string | null>): Variables {
  const isKept = ([name, value]: [string, string | null]) =>
    value !== null && Object.hasOwn(variables, name) && isMaskOf(value, variables[name]!);
  const changed = Object.fromEntries(Object.entries(change).filter((entry) => !isKept(entry)));
  const merged = Object.fromEntries(
    Object.entries({ ...variables, ...changed }).filter(
      (entry): entry is [string, string] => entry[1] !== null,
    ),
  );
  if (!fit(merged)) throw tooManyVariables();
  return merged;
}

export function fit(variables: Record<string, string | null>): boolean {
  const entries = Object.entries(variables);
  const bytes = entries.reduce(
    (sum, [name, value]) => sum + Buffer.byteLength(name) + Buffer.byteLength(value ?? "") + 2,
    0,
  );
  return entries.length <= maxVariables && bytes <= maxVariablesBytes;
}

function place(owner: Owner, id: string): string {
  return `${owner}:${id}:env`;
}
