/**
 * Encrypts a project's credential for a registry of images. The ciphertext is bound to the project's row, and only a
 * pull decrypts it.
 */
import type { App } from "#app.ts";
import type { RegistryCredential } from "#builds/registry/client.ts";
import type { ProjectRow } from "./store.ts";

type Needs = Pick<App, "secrets">;

const place = (projectId: string): string => `projects:registry:${projectId}`;

export function sealRegistryCredential(
  app: Needs,
  projectId: string,
  credential: RegistryCredential | null | undefined,
): Buffer | null {
  return credential ? app.secrets.seal(JSON.stringify(credential), place(projectId)) : null;
}

export function openRegistryCredential(
  app: Needs,
  { id, registry_sealed: sealed }: Pick<ProjectRow, "id" | "registry_sealed">,
): RegistryCredential | null {
  return sealed && (JSON.parse(app.secrets.open(sealed, place(id)).toString()) as RegistryCredential);
}
