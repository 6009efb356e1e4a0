/** The wire of an analysis. */
import { z } from "zod";
import type { Analysis } from "#builds/detection/detection.ts";
import type { ProjectRow } from "../projects/projects.ts";

export const RepoAnalysis = z
  .object({
    framework: z.string().nullable().describe("Null where nothing was recognised."),
    runtime: z.enum(["node", "python", "go", "static", "dockerfile"]).nullable(),
    package_manager: z.string().nullable(),
    install_command: z.string().nullable(),
    build_command: z.string().nullable(),
    start_command: z.string().nullable(),
    output_directory: z.string().nullable(),
    port: z.int().nullable(),
    recipe: z
      .string()
      .nullable()
      .describe("The Dockerfile it is built by; null where nothing was recognised."),
    evidence: z.array(z.string()).describe("Why each thing is as it is."),
    warnings: z.array(z.string()).describe("What may not turn out as expected."),
  })
  .meta({ id: "RepoAnalysis" });
export type RepoAnalysis = z.output<typeof RepoAnalysis>;

/** What the project's owner has laid down stands in place of what was found. */
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
