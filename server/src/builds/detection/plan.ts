/** What is to be built and run, as data: made by the look at a language's files, written down by `recipe.ts`. */

/** A command is a line of `sh`; it comes from the repository or from its owner, and is quoted where it is written. */
export interface Plan {
  /** The directory of the repository that is handed to the builder; `.` is the whole of it. */
  context: string;
  /** Where in the context the app lies. */
  directory: string;
  /** What a package manager is called by, and our own line that gets it where the image has none; run where a command names it. */
  manager: { name: string; setUp: string } | null;
  /** Absent where the files are served as they are. */
  build?: BuildStage;
  run: ServerStage | SiteStage;
}

export interface BuildStage {
  image: string;
  packages: readonly string[];
  /** Set before anything runs. Values are ours, and may name other variables. */
  env: Readonly<Record<string, string>>;
  /** Set once the dependencies are there. */
  buildEnv: Readonly<Record<string, string>>;
  /** Our own lines of `sh`, in order, before anything of the repository is there. */
  setUp: readonly string[];
  /** What the install needs to see (directories end with `/`), so that it is kept while only sources change; null: everything. */
  manifests: readonly string[] | null;
  /** Where the package manager keeps what it downloads. */
  caches: readonly string[];
  /** Where the build keeps what the next one can use again. */
  buildCaches: readonly string[];
  install: string | null;
  /** Our own line, after the install: what the start needs and the repository does not name. */
  add: string | null;
  build: string | null;
  /** Our own line that removes what only the build needed. */
  prune: string | null;
}

export interface ServerStage {
  kind: "server";
  image: string;
  packages: readonly string[];
  env: Readonly<Record<string, string>>;
  /** From the build's file system (absolute, or below the app's directory) to below the app's directory. */
  ships: readonly (readonly [from: string, to: string])[];
  start: string | null;
}

export interface SiteStage {
  kind: "site";
  /** Below the app's directory. */
  directory: string;
  /** Answers every unknown path, as an app that routes in the browser needs it; null: 404. */
  fallback: string | null;
  /** Below this path every name holds a hash of what is in the file. */
  hashed: string | null;
}

/** Settings of the project's owner; each replaces the detected value. Commands are lines of `sh`. */
export interface Overrides {
  installCommand?: string;
  buildCommand?: string;
  startCommand?: string;
  /** Below the app's directory. */
  outputDirectory?: string;
  port?: number;
  healthCheckPath?: string;
}
