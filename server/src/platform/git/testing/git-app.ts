/** App for tests of this folder: a real database and data directory with projects, and a user's git client. */
import { mkdtempSync } from "node:fs";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import { run } from "@kontor/runtime/exec.ts";
import type { App } from "#app.ts";
import type { ConfigKey } from "#config.ts";
import type { Db } from "#schema.ts";
import { silentLog, testClock, testConfig, testSecrets } from "../../../../test/harness.ts";
import { newHook } from "../webhooks/hook-address.ts";
import { createRepository } from "../hosting/repositories.ts";
import { sealGitSecret } from "../git-secrets.ts";
import type { ProjectRow } from "../store.ts";

export type GitApp = Pick<App, "config" | "db" | "secrets" | "clock" | "log">;

/** Temporary directory of a test file, which is removed at the end. */
const root = mkdtempSync(join(tmpdir(), "kontor-git-"));
afterAll(() => rm(root, { recursive: true, force: true }));

export async function temporary(): Promise<string> {
  const directory = await mkdtemp(join(root, "t-"));
  await Promise.all([chmod(root, 0o711), chmod(directory, 0o711)]);
  return directory;
}

export async function gitApp(db: Db, overrides: Partial<Record<ConfigKey, string>> = {}): Promise<GitApp> {
  const config = { ...testConfig(overrides), dataDir: await temporary() };
  return { config, db, secrets: testSecrets(), clock: testClock(), log: silentLog };
}

let made = 0;

/**
 * Inserts a project with its production environment. The repository is hosted here unless the project has a `repo_url`.
 */
export async function makeProject(
  app: GitApp,
  workspaceId: string,
  values: Partial<ProjectRow> & { hookSecret?: string; gitToken?: string; deployKey?: string } = {},
): Promise<ProjectRow> {
  const { hookSecret, gitToken, deployKey, ...row } = values;
  const id = row.id ?? crypto.randomUUID();
  const name = row.name ?? `shop-${++made}`;
  const hook = newHook();
  const project = await app.db
    .insertInto("projects")
    .values({
      id,
      workspace_id: workspaceId,
      name,
      region: "eu-1",
      hook_id: hook.id,
      hook_secret_sealed: sealGitSecret(app, "hook_secret", id, hookSecret ?? hook.secret),
      root_directory: "/",
      health_check_path: "/",
      isolation: "native",
      branch: row.branch ?? "main",
      auto_deploy: row.auto_deploy ?? true,
      repo_url: row.repo_url ?? null,
      ...(gitToken === undefined ? {} : { git_token_sealed: sealGitSecret(app, "git_token", id, gitToken) }),
      ...(deployKey === undefined
        ? {}
        : { deploy_key_sealed: sealGitSecret(app, "deploy_key", id, deployKey) }),
    })
    .returningAll()
    .executeTakeFirstOrThrow();
  await app.db
    .insertInto("environments")
    .values({
      project_id: id,
      name: "production",
      kind: "production",
      branch: project.branch,
      host_label: name,
      size: "small",
    })
    .execute();
  if (project.repo_url === null) await createRepository(app, id);
  return project;
}

/** Runs git as a user does, without the settings of this host. */
export async function userGit(
  cwd: string,
  args: readonly string[],
  options: { env?: Record<string, string>; okCodes?: number[]; stdin?: string; signal?: AbortSignal } = {},
): Promise<{ code: number; stdout: string; stderr: string }> {
  return run(["git", ...args], {
    cwd,
    env: {
      PATH: "/usr/local/bin:/usr/bin:/bin",
      HOME: "/nonexistent",
      LC_ALL: "C",
      GIT_CONFIG_NOSYSTEM: "1",
      GIT_CONFIG_GLOBAL: "/dev/null",
      GIT_TERMINAL_PROMPT: "0",
      GIT_AUTHOR_NAME: "Ada",
      GIT_AUTHOR_EMAIL: "ada@example.test",
      GIT_COMMITTER_NAME: "Ada",
      GIT_COMMITTER_EMAIL: "ada@example.test",
      ...options.env,
    },
    ...(options.okCodes ? { okCodes: options.okCodes } : {}),
    ...(options.stdin === undefined ? {} : { stdin: options.stdin }),
    ...(options.signal ? { signal: options.signal } : {}),
    group: true,
    timeoutMs: 60_000,
  });
}

/** Commits these files (text by path) without a working directory. Returns the id of the commit. */
export async function commitFiles(
  repository: string,
  branch: string,
  files: Record<string, string>,
  message = "work",
): Promise<string> {
  const index = join(repository, `index-${++made}`);
  const env = { GIT_INDEX_FILE: index };
  for (const [path, text] of Object.entries(files)) {
    const { stdout } = await userGit(repository, ["hash-object", "-w", "--stdin"], { stdin: text });
    const entry = `100644,${stdout.trim()},${path}`;
    await userGit(repository, ["update-index", "--add", "--cacheinfo", entry], { env });
  }
  return commitIndex(repository, branch, env, message);
}

/** Commits the index to the branch, and returns the id of the commit. */
export async function commitIndex(
  repository: string,
  branch: string,
  env: Record<string, string>,
  message = "work",
): Promise<string> {
  const tree = (await userGit(repository, ["write-tree"], { env })).stdout.trim();
  return commitTree(repository, branch, tree, message);
}

export async function commitTree(
  repository: string,
  branch: string,
  tree: string,
  message = "work",
): Promise<string> {
  const ref = `refs/heads/${branch}`;
  const head = await userGit(repository, ["rev-parse", "--verify", "--quiet", ref], { okCodes: [0, 1] });
  const parent = head.code === 0 ? ["-p", head.stdout.trim()] : [];
  const { stdout } = await userGit(repository, ["commit-tree", tree, ...parent, "-m", message]);
  await userGit(repository, ["update-ref", ref, stdout.trim()]);
  return stdout.trim();
}
