/** Templates with the interpreter that `run_code` needs. */
import type { App } from "#app.ts";
import type { Vm } from "../config.ts";

const codeTemplate = "code-interpreter";

/**
 * Returns true for a built-in template with an interpreter, and for any custom template. If a custom template has no
 * interpreter, the call returns an error.
 */
export function hasInterpreter(
  { machines }: Pick<App, "machines">,
  { template }: Pick<Vm, "template">,
): boolean {
  return template === codeTemplate || !machines.images.has(template);
}
