/** A project's secrets: sealed in its row, each to its own place, opened by what needs them and by nobody else. */
import type { App } from "#app.ts";

export type ProjectSecret = "git_token" | "deploy_key" | "hook_secret";

type Needs = Pick<App, "secrets">;

export function sealSecret(app: Needs, projectId: string, secret: ProjectSecret, text: string): Buffer {
  return app.secrets.seal(text, place(projectId, secret));
}

export function openSecret(app: Needs, projectId: string, secret: ProjectSecret, sealed: Buffer): string {
  return app.secrets.open(sealed, place(projectId, secret)).toString();
}

function place(projectId: string, secret: ProjectSecret): string {
  return `projects:${projectId}:${secret}`;
}
