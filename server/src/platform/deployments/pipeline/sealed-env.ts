/**
 * Encrypts the variables of a deployment. The ciphertext is bound to the deployment's id: a copy in another row cannot
 * be decrypted.
 */
import type { App } from "#app.ts";
import type { DeploymentRow } from "../store.ts";

const place = (id: string): string => `deployments:env:${id}`;

export function sealEnv(app: Pick<App, "secrets">, id: string, env: Record<string, string>): Buffer {
  return app.secrets.seal(JSON.stringify(env), place(id));
}

export function openEnv(
  app: Pick<App, "secrets">,
  { id, env_sealed }: Pick<DeploymentRow, "id" | "env_sealed">,
): Record<string, string> {
  if (!env_sealed) return {};
  return JSON.parse(app.secrets.open(env_sealed, place(id)).toString()) as Record<string, string>;
}
