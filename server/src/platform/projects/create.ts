/**
 * Creates a project and its production environment in one transaction. A project without a repository elsewhere gets a
 * hosted one.
 */
import { randomUUID } from "node:crypto";
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { requireBelow } from "#accounts/plans.ts";
import { requireWritableWorkspace } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { addEnvironment } from "../environments/create.ts";
import { makeDeployKey } from "../git/fetch/deploy-key.ts";
import { newHook } from "../git/webhooks/hook-address.ts";
import { createRepository } from "../git/hosting/repositories.ts";
import { sealGitSecret } from "../git/git-secrets.ts";
import { requireDomain, requireFreeName, requireRegion } from "./checks.ts";
import { render, target } from "./projects.ts";
import { sealRegistryCredential } from "./registry-credential.ts";
import { parseRepositoryUrl } from "./repository-url.ts";
import { hookUrl, type ProjectCreate, type ProjectCreated } from "./schema.ts";
import { insertRow, lockAndCount } from "./store.ts";
import { sealVariables } from "../environments/variables.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

/** Creates a project. No later response contains the webhook's secret. */
export async function createProject(app: Needs, actor: Actor, input: ProjectCreate): Promise<ProjectCreated> {
  const workspace = requireWritableWorkspace(actor, input.workspace);
  const region = requireRegion(app, input.region);
  const id = randomUUID();
  const hook = newHook();
  const deployKey = await deployKeyFor(input.repo_url ?? null);
  const now = app.clock.now();
  const made = await app.db.transaction().execute(async (tx) => {
    requireBelow(workspace.plan, "projects", await lockAndCount(tx, workspace.id), workspace.id);
    await requireFreeName(tx, input.name);
    if (input.custom_domain) await requireDomain(app, tx, input.custom_domain, null);
    const row = await insertRow(tx, {
      id,
      workspace_id: workspace.id,
      name: input.name,
      repo_url: input.repo_url ?? null,
      branch: input.branch,
      root_directory: input.root_directory,
      framework: input.framework ?? null,
      install_command: input.install_command ?? null,
      build_command: input.build_command ?? null,
      start_command: input.start_command ?? null,
      output_directory: input.output_directory ?? null,
      port: input.port ?? null,
      health_check_path: input.health_check_path,
      auto_deploy: input.auto_deploy,
      isolation: input.isolation,
      region,
      env_sealed: sealVariables(app, "projects", id, input.env_vars),
      git_token_sealed: input.git_token ? sealGitSecret(app, "git_token", id, input.git_token) : null,
      registry_sealed: sealRegistryCredential(app, id, input.registry_credential),
      deploy_key_public: deployKey?.publicKey ?? null,
      deploy_key_sealed: deployKey ? sealGitSecret(app, "deploy_key", id, deployKey.privateKey) : null,
      hook_id: hook.id,
      hook_secret_sealed: sealGitSecret(app, "hook_secret", id, hook.secret),
      custom_domain: input.custom_domain ?? null,
      domain_status: input.custom_domain ? "pending" : null,
      domain_checked_at: null,
      domain_error: null,
      group_id: null,
      created_at: now,
      updated_at: now,
      deleted_at: null,
    });
    await addEnvironment(app, tx, {
      projectId: id,
      name: "production",
      kind: "production",
      branch: input.branch,
      hostLabel: input.name,
      plan: workspace.plan,
      variables: {},
    });
    await recordActivity(tx, actor, "project.created", target(row), workspace.id, {
      repo_url: row.repo_url,
      branch: row.branch,
    });
    // The repository is created before the commit. If the commit fails, an empty directory is left, which is harmless.
    // A project without a repository could not receive pushes.
    if (row.repo_url === null) await createRepository(app, id);
    return row;
  });
  return {
    ...(await render(app, actor, made)),
    webhook: { url: hookUrl(app, hook.id), secret: hook.secret },
  };
}

/** Returns the columns of a new deploy key. A repository that is fetched by ssh needs one. */
export async function deployKeyFor(repositoryUrl: string | null) {
  if (repositoryUrl === null) return undefined;
  const parsed = parseRepositoryUrl(repositoryUrl);
  return "kind" in parsed && parsed.kind === "ssh" ? makeDeployKey() : undefined;
}
