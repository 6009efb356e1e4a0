/** Templates with the interpreter that `run_code` needs. */
import type { App } from "#app.ts";
import type { Vm } from "../config.ts";

const codeTemplate = "code-interpreter";

/**
 * True for a built-in template with an interpreter. A custom template is assumed to have one; without it the call
 * returns an error.
 */
export function hasInterpreter(
  { machines }: Pick<App, "machines">,
  { template }: Pick<Vm, "template">,
): boolean {
  return template === codeTemplate || !machines.images.has(template);
}
