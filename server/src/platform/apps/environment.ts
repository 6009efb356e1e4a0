/**
 * Encrypts the environment variables of an app's process, bound to its instance. Changed variables apply at the next
 * start.
 */
import { isDeepStrictEqual } from "node:util";
import type { App } from "#app.ts";
import type { InstanceRow } from "./store.ts";

export type Variables = Record<string, string>;

interface StartVariables {
  /** Variables of the image. Variables of the environment override those of the image. */
  image: Variables;
  given: Variables;
  /** Variables of the environment when the instance starts. The deployment may have used other variables. */
  variables: Variables;
}

type Needs = Pick<App, "secrets">;
type Sealing = Pick<InstanceRow, "id" | "env_sealed">;

export function sealEnv(app: Needs, id: string, env: StartVariables): Buffer {
  return app.secrets.seal(JSON.stringify(env), `apps:env:${id}`);
}

/**
 * Returns the variables of the process. The server sets PORT. HOST is a default that the app may override with a better
 * address.
 */
export function envOf(app: Needs, row: Sealing, port: number): Variables {
  const { image, given } = open(app, row);
  return { HOST: "0.0.0.0", ...image, ...given, PORT: String(port) };
}

/** Encrypts the variables again. Returns undefined if the variables are equal to those already encrypted. */
export function resealEnv(app: Needs, row: Sealing, variables: Variables): Buffer | undefined {
  const was = open(app, row);
  if (isDeepStrictEqual(was.variables, variables)) return undefined;
  return sealEnv(app, row.id, { ...was, given: variables, variables });
}

function open(app: Needs, { id, env_sealed }: Sealing): StartVariables {
  return JSON.parse(app.secrets.open(env_sealed, `apps:env:${id}`).toString()) as StartVariables;
}
