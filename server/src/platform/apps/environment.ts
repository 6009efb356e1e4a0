/**
 * Encrypts the environment variables of an app's process, bound to its instance. Changed variables apply at the next
 * start.
 */
import { isDeepStrictEqual } from "node:util";
import type { App } from "#app.ts";
import type { InstanceRow } from "./store.ts";

export type Variables = Record<string, string>;

interface StartVariables {
  /** Variables of the image, which the others override. */
  image: Variables;
  given: Variables;
  /** Variables of the environment at the instance's start. A deployment may have used others. */
  variables: Variables;
}

type Needs = Pick<App, "secrets">;
type Sealing = Pick<InstanceRow, "id" | "env_sealed">;

export function sealEnv(app: Needs, id: string, env: StartVariables): Buffer {
  return app.secrets.seal(JSON.stringify(env), `apps:env:${id}`);
}

/**
 * Variables of the process. The server sets PORT. HOST is only a default, because the app may know a better address.
 */
export function envOf(app: Needs, row: Sealing, port: number): Variables {
  const { image, given } = open(app, row);
  return { HOST: "0.0.0.0", ...image, ...given, PORT: String(port) };
}

/** Encrypts the variables again if the environment's have changed. Undefined if they are equal. */
export function resealEnv(app: Needs, row: Sealing, variables: Variables): Buffer | undefined {
  const was = open(app, row);
  if (isDeepStrictEqual(was.variables, variables)) return undefined;
  return sealEnv(app, row.id, { ...was, given: variables, variables });
}

function open(app: Needs, { id, env_sealed }: Sealing): StartVariables {
  return JSON.parse(app.secrets.open(env_sealed, `apps:env:${id}`).toString()) as StartVariables;
}
