/**
 * Environment variables: sealed at rest in the row they belong to, opened only for who asks for them by name and for
 * what is started with them. An environment's beat its project's, which beat what an add-on gives.
 */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { isMaskOf } from "#lib/secret-hint.ts";
import { addonVariables } from "../addons/access/variables.ts";
import { environmentNotFound, tooManyVariables } from "./errors.ts";
import { findSealed } from "./store.ts";

export type Variables = Record<string, string>;

/** Whose they are: the place they are sealed to. */
type Owner = "projects" | "environments" | "functions";

type Needs = Pick<App, "secrets">;

export const maxVariables = 200;
/** Of names and values, and the two bytes that a process has beside each pair. */
export const maxVariablesBytes = 64 * 1024;

/** What a process of the environment is started with. */
export async function variablesOf(app: Needs, db: Db, environmentId: string): Promise<Variables> {
  const row = await findSealed(db, environmentId);
  if (!row) throw environmentNotFound();
  return {
    ...(await addonVariables(app, db, environmentId)),
    ...openVariables(app, "projects", { id: row.project_id, env_sealed: row.project_env_sealed }),
    ...openVariables(app, "environments", row),
  };
}

/** Null where there are none. */
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

/** Applies changes: a string sets, null removes, a mask keeps the stored value. Throws `too_many_variables`. */
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
