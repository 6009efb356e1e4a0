/** Functions that insert rows for tests directly into the tables: a user with a workspace, a team, a token. */
import { createHash, randomBytes } from "node:crypto";
import type { Selectable } from "kysely";
import type { ApiTokensTable, UsersTable, WorkspacesTable } from "#accounts/tables.ts";
import type { Scope, TeamRole } from "#accounts/roles.ts";
import type { Db } from "#schema.ts";
import { newId, randomText } from "#lib/ids.ts";

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

export interface Person {
  user: Selectable<UsersTable>;
  /** The user's personal workspace. */
  workspace: Selectable<WorkspacesTable>;
}

/** Inserts a user with a personal workspace. No password matches the hash. */
export async function makePerson(
  db: Db,
  options: {
    email?: string;
    isOperator?: boolean;
    workspace?: Partial<Pick<Selectable<WorkspacesTable>, "plan" | "sandbox_tier" | "suspended_at">>;
  } = {},
): Promise<Person> {
  const email = options.email ?? `${randomBytes(6).toString("hex")}@example.test`;
  const user = await db
    .insertInto("users")
    .values({ email, name: email, password_hash: "!", is_operator: options.isOperator ?? false })
    .returningAll()
    .executeTakeFirstOrThrow();
  const workspace = await db
    .insertInto("workspaces")
    .values({ kind: "personal", owner_user_id: user.id, name: "personal", ...options.workspace })
    .returningAll()
    .executeTakeFirstOrThrow();
  return { user, workspace };
}

/** Inserts a team. The team's id is also the id of its workspace. */
export async function makeTeam(
  db: Db,
  members: Record<string, TeamRole>,
  workspace: Partial<
    Pick<Selectable<WorkspacesTable>, "plan" | "sandbox_tier" | "suspended_at" | "name">
  > = {},
): Promise<Selectable<WorkspacesTable>> {
  const team = await db
    .insertInto("workspaces")
    .values({ kind: "team", name: "team", plan: "team", ...workspace })
    .returningAll()
    .executeTakeFirstOrThrow();
  for (const [user, role] of Object.entries(members)) {
    await db.insertInto("team_members").values({ workspace_id: team.id, user_id: user, role }).execute();
  }
  return team;
}

/** Inserts a project without a repository, with a production environment and without deployments. */
export async function makeProject(
  db: Db,
  workspaceId: string,
  {
    name = `p${randomBytes(6).toString("hex")}`,
    domain = null,
  }: { name?: string; domain?: string | null } = {},
): Promise<{ id: string; environmentId: string }> {
  const { id } = await db
    .insertInto("projects")
    .values({
      workspace_id: workspaceId,
      name,
      repo_url: null,
      branch: "main",
      root_directory: "/",
      framework: null,
      install_command: null,
      build_command: null,
      start_command: null,
      output_directory: null,
      port: null,
      health_check_path: "/",
      auto_deploy: true,
      isolation: "native",
      region: "eu-1",
      env_sealed: null,
      git_token_sealed: null,
      deploy_key_public: null,
      deploy_key_sealed: null,
      hook_id: randomBytes(8).toString("hex"),
      hook_secret_sealed: Buffer.alloc(1),
      custom_domain: domain,
      domain_status: domain === null ? null : "pending",
      domain_checked_at: null,
      domain_error: null,
      group_id: null,
      deleted_at: null,
    })
    .returning("id")
    .executeTakeFirstOrThrow();
  const environment = await db
    .insertInto("environments")
    .values({
      project_id: id,
      name: "production",
      kind: "production",
      branch: "main",
      host_label: name,
      size: "small",
      env_sealed: null,
      live_deployment_id: null,
      asleep_since: null,
      deleted_at: null,
    })
    .returning("id")
    .executeTakeFirstOrThrow();
  return { id, environmentId: environment.id };
}

/** Inserts a valid token: `plaintext` goes after `Bearer`. */
export async function makeToken(
  db: Db,
  userId: string,
  options: { scopes?: readonly Scope[] | null; workspaceId?: string | null; expiresAt?: Date | null } = {},
): Promise<{ plaintext: string; row: Selectable<ApiTokensTable> }> {
  const plaintext = `svc_${randomText(base62, 40)}`;
  const row = await db
    .insertInto("api_tokens")
    .values({
      id: newId("tok_"),
      user_id: userId,
      name: "test",
      prefix: plaintext.slice(0, 8),
      token_hash: createHash("sha256").update(plaintext).digest("hex"),
      scopes: options.scopes ? [...options.scopes] : null,
      workspace_id: options.workspaceId ?? null,
      expires_at: options.expiresAt ?? null,
    })
    .returningAll()
    .executeTakeFirstOrThrow();
  return { plaintext, row };
}
