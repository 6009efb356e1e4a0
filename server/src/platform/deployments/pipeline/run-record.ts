/** Command, port and health check of an app: from its project, else from its image. */
import type { ProjectRow } from "#platform/projects/projects.ts";
import type { BuiltImage } from "./pipeline.ts";
import type { RunRecord } from "../tables.ts";

/** Port of an app if project, image and framework set none. */
export const defaultPort = 8080;

export function runOf(
  project: ProjectRow,
  { run }: BuiltImage,
  {
    port,
    isOwnRecipe,
  }: {
    port: number | null;
    /** True if the image was not made by a recipe of Kontor, which contains the start command. */
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
