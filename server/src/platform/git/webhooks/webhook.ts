/** A project's webhook, as its owner sees it: the address to call, the last delivery, and the auto-deploy setting. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import { getProject, lockWritableProject, target } from "#platform/projects/projects.ts";
import { guessProvider, type Provider } from "./forges.ts";
import { newHookSecret } from "./hook-address.ts";
import { openGitSecret, sealGitSecret } from "../git-secrets.ts";
import { changeHook, type ProjectRow } from "../store.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

/** Fields of the response that `schema.ts` describes. */
export interface WebhookView {
  project: ProjectRow;
  provider: Provider;
  secretHint: string;
  /** Secret of the webhook; present only in the response that created it. */
  secret?: string;
}

export async function getWebhook(app: Needs, actor: Actor, projectId: string): Promise<WebhookView> {
  return view(app, await getProject(app, actor, projectId));
}

export async function toggleWebhook(
  app: Needs,
  actor: Actor,
  projectId: string,
  settings: { enable: boolean; rotate_secret: boolean },
): Promise<WebhookView> {
  const secret = settings.rotate_secret ? newHookSecret() : undefined;
  const project = await transaction(app.db, async (tx) => {
    const { project: before } = await lockWritableProject(tx, actor, projectId);
    const action = settings.enable ? "webhook.enabled" : "webhook.disabled";
    const deeds = before.auto_deploy === settings.enable ? [] : [action];
    if (secret !== undefined) deeds.push("webhook.secret_rotated");
    for (const action of deeds) await recordActivity(tx, actor, action, target(before), before.workspace_id);
    return changeHook(tx, projectId, {
      auto_deploy: settings.enable,
      updated_at: app.clock.now(),
      ...(secret === undefined
        ? {}
        : { hook_secret_sealed: sealGitSecret(app, "hook_secret", projectId, secret) }),
    });
  });
  return { ...view(app, project), ...(secret === undefined ? {} : { secret }) };
}

/** Returns the public half of the deploy key, for the forge. Null if the repository is not fetched by ssh. */
export async function getDeployKey(app: Needs, actor: Actor, projectId: string): Promise<string | null> {
  return (await getProject(app, actor, projectId)).deploy_key_public;
}

function view(app: Needs, project: ProjectRow): WebhookView {
  const known = project.repo_url === null ? null : (project.hook_provider as Provider | null);
  const secret = openGitSecret(app, "hook_secret", project.id, project.hook_secret_sealed);
  return {
    project,
    provider: known ?? guessProvider(project.repo_url),
    secretHint: `…${secret.slice(-4)}`,
  };
}
