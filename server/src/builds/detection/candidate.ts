/** Result of a language's detection: a candidate, and on demand its build and start. */
import type { Overrides, Plan } from "./plan.ts";

export type Runtime = "node" | "python" | "go" | "static" | "dockerfile";

/** Build and start of a detected app; commands are lines of `sh`. */
export interface BuildSpec {
  runtime: Runtime;
  /** Version such as "22" or "3.12"; null if no runtime version applies. */
  runtimeVersion: string | null;
  packageManager: string | null;
  installCommand: string | null;
  buildCommand: string | null;
  startCommand: string | null;
  /** Output directory of a site, below the app's directory. */
  outputDirectory: string | null;
  port: number;
  plan: Plan;
}

/** Ordered from the most certain to the fallback. */
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

/** The owner's settings that direct the detection. */
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
  /** Names a setting that is required for a deployment; absent if the files suffice. */
  missing?: string;
  /** Resolves build and start, and adds evidence and warnings. `start` is the Procfile's line, if there is one. */
  resolveBuild(start?: string): Promise<BuildSpec>;
}
