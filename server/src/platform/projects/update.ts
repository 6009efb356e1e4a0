/** Updates a project. Running apps keep their settings until the next deployment. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { requireWorkspace } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { hasAddons } from "../addons/find.ts";
import { changeHosts, setProductionBranch, isDeployed } from "../environments/of-project.ts";
import { mergeVariables, openVariables, sealVariables } from "../environments/variables.ts";
import { createRepository } from "../git/hosting/repositories.ts";
import { sealGitSecret } from "../git/git-secrets.ts";
import { requireDomain, requireFreeName, requireRegion } from "./checks.ts";
import { deployKeyFor } from "./create.ts";
import { invalidField } from "../input/schema.ts";
import { projectDeployed, projectHasAddons } from "./errors.ts";
import { lockWritableProject, type ProjectRow, render, target } from "./projects.ts";
import { sealRegistryCredential } from "./registry-credential.ts";
import { parseRepositoryUrl } from "./repository-url.ts";
import { isHttps, type ProjectResponse, type ProjectUpdate } from "./schema.ts";
import { changeRow, type ProjectChange as Change } from "./store.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export async function updateProject(
  app: Needs,
  actor: Actor,
  id: string,
  input: ProjectUpdate,
): Promise<ProjectResponse> {
  const changed = await app.db.transaction().execute(async (tx) => {
    const { project } = await lockWritableProject(tx, actor, id);
    if (input.workspace && requireWorkspace(actor, input.workspace).id !== project.workspace_id)
      throw invalidField("workspace", "cannot change: create another project in that workspace");
    const now = app.clock.now();
    if (input.name !== undefined && input.name !== project.name) await rename(tx, project, input.name, now);
    if (input.branch !== undefined) await setProductionBranch(tx, project.id, input.branch, now);
    if (input.repo_url === null) await createRepository(app, project.id);
    const row = await changeRow(tx, project.id, {
      ...plain(input),
      ...(input.region === undefined ? {} : { region: requireRegion(app, input.region) }),
      ...(await source(app, project, input)),
      ...(await domain(app, tx, project, input)),
      ...variables(app, project, input.env_vars),
      ...registry(app, project, input.registry_credential),
      updated_at: now,
    });
    await recordActivity(tx, actor, "project.updated", target(row), row.workspace_id, {
      fields: Object.keys(input),
      ...(row.name === project.name ? {} : { from: project.name }),
    });
    return row;
  });
  return render(app, actor, changed);
}

/** Fields that are stored unchanged. */
const plainFields = [
  "name",
  "branch",
  "root_directory",
  "framework",
  "install_command",
  "build_command",
  "start_command",
  "output_directory",
  "port",
  "health_check_path",
  "auto_deploy",
  "isolation",
] as const satisfies (keyof ProjectUpdate & keyof ProjectRow)[];

function plain(input: ProjectUpdate): Change {
  return Object.fromEntries(
    plainFields.flatMap((field) => (input[field] === undefined ? [] : [[field, input[field]]])),
  );
}

/** Returns the change of name. A deployed project keeps its name, because visitors use its address. */
async function rename(tx: Db, project: ProjectRow, name: string, now: Date): Promise<void> {
  if (await isDeployed(tx, project.id)) throw projectDeployed();
  if (await hasAddons(tx, project.id)) throw projectHasAddons();
  await requireFreeName(tx, name);
  await changeHosts(tx, project.id, name, now);
}

/**
 * Returns the change of the repository. A token and a key belong to the origin for which they were set: scheme, host
 * and port. Both are deleted when the repository moves to another origin, and must then be set again.
 */
async function source(app: Needs, project: ProjectRow, input: ProjectUpdate): Promise<Change> {
  const url = input.repo_url === undefined ? project.repo_url : input.repo_url;
  if (input.git_token && !isHttps(url))
    throw invalidField(
      "git_token",
      "is for an https repository only; an ssh repository uses the project's deploy key",
    );
  const change: Change = {};
  if (originOf(url) !== originOf(project.repo_url)) {
    const key = await deployKeyFor(url);
    change.git_token_sealed = null;
    change.deploy_key_public = key?.publicKey ?? null;
    change.deploy_key_sealed = key ? sealGitSecret(app, "deploy_key", project.id, key.privateKey) : null;
  }
  // A request that sets repo_url again confirms a changed host key.
  if (input.repo_url !== undefined) Object.assign(change, { repo_url: url, known_hosts: null });
  if (input.git_token !== undefined) {
    change.git_token_sealed = input.git_token
      ? sealGitSecret(app, "git_token", project.id, input.git_token)
      : null;
  }
  return change;
}

function originOf(url: string | null): string | null {
  if (url === null) return null;
  const parsed = parseRepositoryUrl(url);
  return "kind" in parsed ? `${parsed.kind}://${parsed.host}` : null;
}

/**
 * Returns the change of the domain. After a rename the domain's DNS records must name another target, so they are
 * checked again.
 */
async function domain(app: Needs, tx: Db, project: ProjectRow, input: ProjectUpdate): Promise<Change> {
  const hostname = input.custom_domain === undefined ? project.custom_domain : input.custom_domain;
  const isRenamed = input.name !== undefined && input.name !== project.name;
  if (hostname === project.custom_domain && !isRenamed) return {};
  if (hostname !== null) await requireDomain(app, tx, hostname, project.id);
  return {
    custom_domain: hostname,
    domain_status: hostname === null ? null : "pending",
    domain_checked_at: null,
    domain_error: null,
  };
}

function registry(app: Needs, { id }: ProjectRow, credential: ProjectUpdate["registry_credential"]): Change {
  if (credential === undefined) return {};
  return { registry_sealed: sealRegistryCredential(app, id, credential) };
}

function variables(app: Needs, project: ProjectRow, change: ProjectUpdate["env_vars"]): Change {
  if (change === undefined) return {};
  const merged = mergeVariables(openVariables(app, "projects", project), change);
  return { env_sealed: sealVariables(app, "projects", project.id, merged) };
}
