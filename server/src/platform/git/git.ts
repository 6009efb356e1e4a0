/**
 * Git. A project's source is either a repository hosted here and pushed to over smart HTTP, or one on another forge,
 * whose webhook reports pushes. In both cases a deployment gets a `checkout`: a plain directory of files at one commit,
 * without a `.git`.
 *
 * The content of a repository is never run or trusted. There are no hooks, and git reads only our configuration, passed
 * in the environment. Every external value is validated before it becomes an argument. Every git process has a deadline
 * and a bound in bytes. Credentials appear in no argument and no log line.
 *
 * This file runs the program `git`.
 */
import { join } from "node:path";
import { run, type RunResult } from "@kontor/runtime/exec.ts";
import type { App } from "#app.ts";

/** Settings as pairs, because some keys occur more than once. */
export type GitSettings = readonly (readonly [key: string, value: string])[];

/**
 * Defects that are common in old histories and harmless. After any other finding of `fsck`, the objects are refused.
 */
const harmless = [
  "badTimezone",
  "missingSpaceBeforeDate",
  "missingSpaceBeforeEmail",
  "zeroPaddedFilemode",
  "missingTaggerEntry",
];

/** Settings of every call. The settings cover all keys that a repository could influence. */
const always: GitSettings = [
  ["safe.directory", "*"],
  ["core.hooksPath", "/dev/null"],
  ["core.fsmonitor", "false"],
  ["core.bigFileThreshold", "16m"],
  ["core.packedGitWindowSize", "32m"],
  ["core.packedGitLimit", "512m"],
  ["pack.threads", "1"],
  ["pack.windowMemory", "64m"],
  ["gc.autoDetach", "false"],
  // A call allows the transport that it needs.
  ["protocol.allow", "never"],
  ["transfer.fsckObjects", "true"],
  // Received objects stay in their pack, so that many small objects do not become many files.
  ["transfer.unpackLimit", "1"],
  ...harmless.flatMap(
    (id) =>
      [
        [`receive.fsck.${id}`, "ignore"],
        [`fetch.fsck.${id}`, "ignore"],
      ] as const,
  ),
];

/** Returns the whole environment of a git process, which ignores the configuration of host and account. */
export function gitEnvironment(
  settings: GitSettings,
  more: NodeJS.ProcessEnv = {},
): Record<string, string | undefined> {
  const all = [...always, ...settings];
  return {
    PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    LC_ALL: "C",
    HOME: "/nonexistent",
    GIT_CONFIG_NOSYSTEM: "1",
    GIT_CONFIG_GLOBAL: "/dev/null",
    GIT_ATTR_NOSYSTEM: "1",
    GIT_TERMINAL_PROMPT: "0",
    GIT_CONFIG_COUNT: String(all.length),
    ...Object.fromEntries(
      all.flatMap(([key, value], n) => [
        [`GIT_CONFIG_KEY_${n}`, key],
        [`GIT_CONFIG_VALUE_${n}`, value],
      ]),
    ),
    ...more,
  };
}

/** Limit of a git process' memory in bytes, because deltas may unpack to any size. */
const addressSpaceBytes = 4 * 1024 ** 3;

/** Returns the argv of `git …` under limits of the kernel. `fileBytes` limits the size of each file that git writes. */
export function gitArgv(args: readonly string[], fileBytes?: number): string[] {
  const limits = [`--as=${addressSpaceBytes}`, "--core=0"];
  if (fileBytes !== undefined) limits.push(`--fsize=${fileBytes}`);
  return ["prlimit", ...limits, "--", "git", ...args];
}

export interface GitCall {
  cwd: string;
  timeoutMs: number;
  settings?: GitSettings;
  env?: NodeJS.ProcessEnv;
  fileBytes?: number;
  okCodes?: readonly number[];
  signal?: AbortSignal;
  maxOutputBytes?: number;
  onOutput?: (text: string) => void;
}

/** Runs git to its end. Rejects as `run` does. */
export function git(args: readonly string[], call: GitCall): Promise<RunResult> {
  const { settings = [], env, fileBytes, onOutput, ...rest } = call;
  return run(gitArgv(args, fileBytes), {
    ...rest,
    env: gitEnvironment(settings, env),
    group: true,
    ...(onOutput ? { onOutput } : {}),
  });
}

/** True if the deadline ended the call. */
export function isLate(error: unknown): boolean {
  return error instanceof Error && "kind" in error && error.kind === "timeout";
}

export const mebibyte = 1024 ** 2;

export function timeoutMsOf({ config }: Pick<App, "config">): number {
  return config.gitTimeoutMinutes * 60_000;
}

/** Returns the directory of the hosted repositories. */
export function repositoriesDirectory({ config }: Pick<App, "config">): string {
  return join(config.dataDir, "git");
}

/** Returns the directory of running checkouts, which the next start of the server empties. */
export function checkoutsDirectory(app: Pick<App, "config">): string {
  return join(repositoriesDirectory(app), "checkouts");
}

export function repositoryDirectory(app: Pick<App, "config">, projectId: string): string {
  if (!/^[0-9a-f-]{36}$/.test(projectId)) throw new Error("the project id is not a UUID");
  return join(repositoriesDirectory(app), `${projectId}.git`);
}
