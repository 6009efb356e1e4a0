/**
 * Hashes everything that a build reads into one key. Builds with the same key make the same image. Variables are part
 * of it because steps see them. The hash is keyed by the secrets key, so that a stored hash does not reveal a variable
 * by guessing.
 */
import { createHmac } from "node:crypto";
import type { App } from "#app.ts";

export interface BuildInputs {
  sha: string;
  /** Text of the Dockerfile. It contains the owner's framework, commands and directories. */
  recipe: string;
  /** Directory of the checkout that the build reads. */
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
