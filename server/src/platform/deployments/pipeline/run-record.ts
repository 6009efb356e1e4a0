/** Determines command, port and health check of an app: the project's settings, or else those of its image. */
import type { ProjectRow } from "#platform/projects/projects.ts";
import type { BuiltImage } from "./pipeline.ts";
import type { RunRecord } from "../tables.ts";

/** Port of an app if neither project nor image nor framework sets one. */
export const defaultPort = 8080;

export function runOf(
  project: ProjectRow,
  { run }: BuiltImage,
  {
    port,
    isOwnRecipe,
  }: {
    port: number | null;
    /** True if no recipe of Kontor made the image. Such a recipe contains the start command. */
    isOwnRecipe: boolean;
  },
): RunRecord {
  const { start_command: command, health_check_path: path } = project;
  return {
    argv: isOwnRecipe && command !== null ? ["/bin/sh", "-c", command] : run.argv,
    port: project.port ?? run.port ?? port ?? defaultPort,
    health_check_path: path === "/" ? (run.healthCheckPath ?? path) : path,
  };
}
