/**
 * Everything that a build reads, as one keyed hash: builds with the same key would make the same image. Variables are
 * part of it because steps see them; the key is derived from the secrets key, so that a stored hash tells nobody a
 * variable by trial.
 */
import { createHmac } from "node:crypto";
import type { App } from "#app.ts";

export interface BuildInputs {
  sha: string;
  /** Text of the Dockerfile; framework, commands and directories that the owner set are in it. */
  recipe: string;
  /** The directory of the checkout that is handed to the builder. */
  context: string;
  variables: Readonly<Record<string, string>>;
}

export function buildKey({ secrets }: Pick<App, "secrets">, inputs: BuildInputs): Buffer {
  const { sha, recipe, context, variables } = inputs;
  const sorted = Object.entries(variables).toSorted(([a], [b]) => (a < b ? -1 : 1));
  return createHmac("sha256", secrets.derive("build-key"))
    .update(JSON.stringify([sha, recipe, context, sorted]))
    .digest();
}
