/** What a language's look at a repository answers: that there is something, and on demand how it is built. */
import type { Overrides, Plan } from "./plan.ts";

export type Runtime = "node" | "python" | "go" | "static" | "dockerfile";

/** What is known of a build and a start; commands are lines of `sh`. */
export interface Settled {
  runtime: Runtime;
  /** "22", "3.12"; null where no runtime's version matters. */
  runtimeVersion: string | null;
  packageManager: string | null;
  installCommand: string | null;
  buildCommand: string | null;
  startCommand: string | null;
  /** The directory of a site, below the app's. */
  outputDirectory: string | null;
  port: number;
  plan: Plan;
}

/** From the surest to what is taken where nothing else is there. */
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
export interface Wanted extends Pick<Overrides, "buildCommand" | "outputDirectory" | "startCommand"> {
  framework?: string | undefined;
}

export interface Found {
  framework: string;
  name: string;
  rank: (typeof ranks)[number];
  /** Names the setting that is missing for a deployment; absent when the files suffice. */
  missing?: string;
  /** Tells the view what was seen, and why each thing is as it is. `start` is the line of a Procfile, where there is one. */
  settle(start?: string): Promise<Settled>;
}
