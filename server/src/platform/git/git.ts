/**
 * Git in. A project's source is a repository that is hosted here and pushed to over smart HTTP, or one on another
 * forge that is fetched from and that tells us of pushes by its webhook. Either way a deployment gets a `checkout`: a
 * plain directory of files at one commit, without a `.git`.
 *
 * What lies in a repository is never run and never believed: there are no hooks, no configuration is read but ours
 * (handed over in the environment), every word from outside is checked before it becomes an argument, and all that
 * git does has a deadline and a bound in bytes. Credentials are in no argument and in no line that is logged.
 *
 * This file is how git itself is called.
 */
import { join } from "node:path";
import { run, type RunResult } from "@kontor/runtime/exec.ts";
import type { App } from "#app.ts";

/** Pairs, because some keys are given more than once. */
export type GitSettings = readonly (readonly [key: string, value: string])[];

/** Old histories are full of these, and they harm nobody; all else that `fsck` finds refuses the objects. */
const harmless = [
  "badTimezone",
  "missingSpaceBeforeDate",
  "missingSpaceBeforeEmail",
  "zeroPaddedFilemode",
  "missingTaggerEntry",
];

/** For every call: what a repository could have a say in is said here. */
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
  // No transport but the one a call opens.
  ["protocol.allow", "never"],
  ["transfer.fsckObjects", "true"],
  // Objects stay in the pack they came in: many small ones are no many files.
  ["transfer.unpackLimit", "1"],
  ...harmless.flatMap(
    (id) =>
      [
        [`receive.fsck.${id}`, "ignore"],
        [`fetch.fsck.${id}`, "ignore"],
      ] as const,
  ),
];

/** The whole environment of a git program: neither the host's configuration nor the account's has a say. */
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

/** Deltas may unpack to anything: what one git program may map at most, whatever it was sent. */
const addressSpaceBytes = 4 * 1024 ** 3;

/** `git …` under limits of the kernel. `fileBytes`: no file it writes becomes larger. */
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

/** Runs git to its end; fails as `run` does. */
export function git(args: readonly string[], call: GitCall): Promise<RunResult> {
  const { settings = [], env, fileBytes, onOutput, ...rest } = call;
  return run(gitArgv(args, fileBytes), {
    ...rest,
    env: gitEnvironment(settings, env),
    group: true,
    ...(onOutput ? { onOutput } : {}),
  });
}

/** Whether it is the deadline that ended a call. */
export function isLate(error: unknown): boolean {
  return error instanceof Error && "kind" in error && error.kind === "timeout";
}

export const mebibyte = 1024 ** 2;

export function timeoutMsOf({ config }: Pick<App, "config">): number {
  return config.gitTimeoutMinutes * 60_000;
}

/** Where hosted repositories lie. */
export function repositoriesDirectory({ config }: Pick<App, "config">): string {
  return join(config.dataDir, "git");
}

/** What checkouts need while they are made; it goes with the next start. */
export function checkoutsDirectory(app: Pick<App, "config">): string {
  return join(repositoriesDirectory(app), "checkouts");
}

export function repositoryDirectory(app: Pick<App, "config">, projectId: string): string {
  if (!/^[0-9a-f-]{36}$/.test(projectId)) throw new Error("no project id");
  return join(repositoriesDirectory(app), `${projectId}.git`);
}
