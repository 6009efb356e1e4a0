/** Plan of a build and a run, as data. A language's detection makes it, and `recipe.ts` writes it as a Dockerfile. */

/**
 * A plan. Each command is a line of `sh` from the repository or its owner, and is quoted when the Dockerfile is
 * written.
 */
export interface Plan {
  /** Build context, as a path in the repository; `.` means the whole repository. */
  context: string;
  /** Directory of the app in the context. */
  directory: string;
  /**
   * Program of the package manager, and our line that installs it. The line runs only if a command uses the program.
   */
  manager: { name: string; setUp: string } | null;
  /** Stage that builds; absent for files that are served unchanged. */
  build?: BuildStage;
  run: ServerStage | SiteStage;
}

export interface BuildStage {
  image: string;
  packages: readonly string[];
  /** Variables of every command. The values are ours, and may refer to other variables. */
  env: Readonly<Record<string, string>>;
  /** Variables of the build command, set after the install. */
  buildEnv: Readonly<Record<string, string>>;
  /** Our own lines of `sh`, run in order before the repository is copied. */
  setUp: readonly string[];
  /**
   * Files that the install reads, so that its layer is cached while only sources change. Directories end with `/`. Null
   * means all files.
   */
  manifests: readonly string[] | null;
  /** Directories of the package manager's download caches. */
  caches: readonly string[];
  /** Cache directories that the next build reuses. */
  buildCaches: readonly string[];
  install: string | null;
  /**
   * Our own line that runs after the install. The line adds packages that the start needs and the repository does not
   * name.
   */
  add: string | null;
  build: string | null;
  /** Our own line that removes packages only the build needs. */
  prune: string | null;
}

export interface ServerStage {
  kind: "server";
  image: string;
  packages: readonly string[];
  env: Readonly<Record<string, string>>;
  /**
   * Copies from the build to the image. `from` is absolute or relative to the app's directory, `to` is below the app's
   * directory.
   */
  ships: readonly (readonly [from: string, to: string])[];
  start: string | null;
}

export interface SiteStage {
  kind: "site";
  /** Directory that is served, below the app's directory. */
  directory: string;
  /** File served for every unknown path, for apps that route in the browser. Null: unknown paths return 404. */
  fallback: string | null;
  /** Path below which every file name contains a hash of the file's content. */
  hashed: string | null;
}

/** Settings of the project's owner; each replaces the detected value. Commands are lines of `sh`. */
export interface Overrides {
  installCommand?: string;
  buildCommand?: string;
  startCommand?: string;
  /** Path below the app's directory. */
  outputDirectory?: string;
  port?: number;
  healthCheckPath?: string;
}
