/** A build and run plan as data: made by a language's detection, written as a Dockerfile by `recipe.ts`. */

/** A command is a line of `sh` from the repository or its owner; it is quoted when it is written. */
export interface Plan {
  /** Directory of the repository that is the build context; `.` is the whole repository. */
  context: string;
  /** Directory of the app in the context. */
  directory: string;
  /**
   * Name of the package manager's program, and our line that installs it. The line runs only if a command uses the
   * program.
   */
  manager: { name: string; setUp: string } | null;
  /** Absent for files that are served unchanged. */
  build?: BuildStage;
  run: ServerStage | SiteStage;
}

export interface BuildStage {
  image: string;
  packages: readonly string[];
  /** Set before any command runs. Values are ours, and may refer to other variables. */
  env: Readonly<Record<string, string>>;
  /** Set after the install. */
  buildEnv: Readonly<Record<string, string>>;
  /** Our own lines of `sh`, run in order before the repository is copied. */
  setUp: readonly string[];
  /**
   * Files that the install reads (directories end with `/`), so that its layer is cached while only sources change;
   * null means all files.
   */
  manifests: readonly string[] | null;
  /** Download caches of the package manager. */
  caches: readonly string[];
  /** Caches that the next build uses again. */
  buildCaches: readonly string[];
  install: string | null;
  /** Our own line after the install: adds packages that the start needs and the repository does not name. */
  add: string | null;
  build: string | null;
  /** Our own line that removes build-only packages. */
  prune: string | null;
}

export interface ServerStage {
  kind: "server";
  image: string;
  packages: readonly string[];
  env: Readonly<Record<string, string>>;
  /** Copies from the build (absolute, or relative to the app's directory) to a path below the app's directory. */
  ships: readonly (readonly [from: string, to: string])[];
  start: string | null;
}

export interface SiteStage {
  kind: "site";
  /** Path below the app's directory. */
  directory: string;
  /** Served for every unknown path, for apps that route in the browser; null: 404. */
  fallback: string | null;
  /** Below this path every file name contains a hash of the content. */
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
