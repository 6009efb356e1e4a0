/** Result of a language's detection: a candidate, which resolves its build and start on request. */
import type { Overrides, Plan } from "./plan.ts";

export type Runtime = "node" | "python" | "go" | "static" | "dockerfile";

/** Build and start of a detected app; commands are lines of `sh`. */
export interface BuildSpec {
  runtime: Runtime;
  /** Version such as "22" or "3.12"; null if the app needs no runtime. */
  runtimeVersion: string | null;
  packageManager: string | null;
  installCommand: string | null;
  buildCommand: string | null;
  startCommand: string | null;
  /** Output directory of a site, below the app's directory; null for a server. */
  outputDirectory: string | null;
  port: number;
  plan: Plan;
}

/** Kinds of candidates, in order of precedence. */
export const ranks = [
  "app",
  "server",
  "python-web",
  "go",
  "site",
  "node-program",
  "python-program",
  "files",
] as const;

/** Settings of the project's owner that affect detection. */
export interface DetectionSettings extends Pick<
  Overrides,
  "buildCommand" | "outputDirectory" | "startCommand"
> {
  framework?: string | undefined;
}

export interface Candidate {
  framework: string;
  name: string;
  rank: (typeof ranks)[number];
  /** Setting that the owner must set before a deployment; absent if the files suffice. */
  missing?: string;
  /**
   * Resolves build and start, and adds evidence and warnings. `start` is the `web` line of the Procfile, if the
   * repository has one.
   */
  resolveBuild(start?: string): Promise<BuildSpec>;
}
