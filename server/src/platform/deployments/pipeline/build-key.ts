/**
 * Hashes all inputs of a build into a key. Builds with equal keys make equal images. Variables are part of the key,
 * because build steps see them. The secrets key keys the hash, so that no variable can be guessed from a stored hash.
 */
import { createHmac } from "node:crypto";
import type { App } from "#app.ts";

export interface BuildInputs {
  sha: string;
  /** Text of the Dockerfile, which contains the owner's framework, commands and directories. */
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
