/** What an app's process is given, sealed to its instance, and the variables it is made of: others apply when it starts next. */
import { isDeepStrictEqual } from "node:util";
import type { App } from "#app.ts";
import type { InstanceRow } from "./store.ts";

export type Variables = Record<string, string>;

interface Sealed {
  /** The image's own, below the variables. */
  image: Variables;
  given: Variables;
  /** What the environment's variables were then; a deployment may have been given others. */
  variables: Variables;
}

type Needs = Pick<App, "secrets">;
type Sealing = Pick<InstanceRow, "id" | "env_sealed">;

export function sealEnv(app: Needs, id: string, env: Sealed): Buffer {
  return app.secrets.seal(JSON.stringify(env), `apps:env:${id}`);
}

/** What the process gets. The port is ours to say; where it listens besides is a custom that the app may know better. */
export function envOf(app: Needs, row: Sealing, port: number): Variables {
  const { image, given } = open(app, row);
  return { HOST: "0.0.0.0", ...image, ...given, PORT: String(port) };
}

/** The environment's variables have changed since: sealed anew with what they are now, else undefined. */
export function renewed(app: Needs, row: Sealing, variables: Variables): Buffer | undefined {
  const was = open(app, row);
  if (isDeepStrictEqual(was.variables, variables)) return undefined;
  return sealEnv(app, row.id, { ...was, given: variables, variables });
}

function open(app: Needs, { id, env_sealed }: Sealing): Sealed {
  return JSON.parse(app.secrets.open(env_sealed, `apps:env:${id}`).toString()) as Sealed;
}
