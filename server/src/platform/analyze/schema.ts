/** Response schema of an analysis. */
import { z } from "zod";
import type { Analysis } from "#builds/detection/detection.ts";
import type { ProjectRow } from "../projects/projects.ts";

export const RepoAnalysis = z
  .object({
    framework: z
      .string()
      .nullable()
      .describe(
        "Framework, such as `nextjs`: the project's setting, else detected. Null if none was recognized.",
      ),
    runtime: z
      .enum(["node", "python", "go", "static", "dockerfile"])
      .nullable()
      .describe("Runtime of the app. Null if nothing was recognised."),
    package_manager: z
      .string()
      .nullable()
      .describe("Package manager of the repository, such as `npm` or `uv`. Null if none applies."),
    install_command: z
      .string()
      .nullable()
      .describe(
        "Shell command that installs the dependencies: the project's setting, else detected. Null if none.",
      ),
    build_command: z
      .string()
      .nullable()
      .describe("Shell command that builds the app: the project's setting, else detected. Null if none."),
    start_command: z
      .string()
      .nullable()
      .describe("Shell command that starts the app: the project's setting, else detected. Null if none."),
    output_directory: z
      .string()
      .nullable()
      .describe("Directory that is served as a site: the project's setting, else detected. Null if none."),
    port: z
      .int()
      .nullable()
      .describe("TCP port that the app listens on: the project's setting, else detected. Null if unknown."),
    recipe: z
      .string()
      .nullable()
      .describe("Dockerfile that the next deployment would build. Null if nothing was recognized."),
    evidence: z.array(z.string()).describe("Reasons for the detected values, as sentences."),
    warnings: z.array(z.string()).describe("Possible problems, as sentences."),
  })
  .meta({ id: "RepoAnalysis" });
export type RepoAnalysis = z.output<typeof RepoAnalysis>;

/** Returns the response of an analysis. Settings of the project replace detected values. */
export function toRepoAnalysis(project: ProjectRow, found: Analysis, recipe: string | null): RepoAnalysis {
  return {
    framework: found.framework,
    runtime: found.runtime,
    package_manager: found.packageManager,
    install_command: project.install_command ?? found.installCommand,
    build_command: project.build_command ?? found.buildCommand,
    start_command: project.start_command ?? found.startCommand,
    output_directory: project.output_directory ?? found.outputDirectory,
    port: project.port ?? found.port,
    recipe,
    evidence: found.evidence,
    warnings: found.warnings,
  };
}
