import type { Overrides } from "#builds/detection/plan.ts";
import type { ProjectRow } from "./store.ts";

/** Returns the settings of a project that override its detected recipe. */
export function overridesOf(project: ProjectRow): Overrides {
  const { install_command, build_command, start_command, output_directory, port } = project;
  return {
    ...(install_command === null ? {} : { installCommand: install_command }),
    ...(build_command === null ? {} : { buildCommand: build_command }),
    ...(start_command === null ? {} : { startCommand: start_command }),
    ...(output_directory === null ? {} : { outputDirectory: output_directory }),
    ...(port === null ? {} : { port }),
    ...(project.health_check_path === "/" ? {} : { healthCheckPath: project.health_check_path }),
  };
}
