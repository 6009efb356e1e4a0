/** Encrypts git's secrets of a project. Each ciphertext is bound to its row and its purpose. */
import type { App } from "#app.ts";

type Needs = Pick<App, "secrets">;
type Secret = "deploy_key" | "git_token" | "hook_secret";

export function sealGitSecret(app: Needs, secret: Secret, projectId: string, plain: string): Buffer {
  return app.secrets.seal(plain, place(secret, projectId));
}

export function openGitSecret(app: Needs, secret: Secret, projectId: string, sealed: Buffer): string {
  return app.secrets.open(sealed, place(secret, projectId)).toString();
}

const place = (secret: Secret, projectId: string): string => `projects:${secret}:${projectId}`;
