/** Which templates bring what `run_code` needs. */
import type { App } from "#app.ts";
import type { Vm } from "../config.ts";

const codeTemplate = "code-interpreter";

/** Of a built-in one that is known by its name. Of a custom one only its machine says; where it has none, the call does. */
export function hasInterpreter(
  { machines }: Pick<App, "machines">,
  { template }: Pick<Vm, "template">,
): boolean {
  return template === codeTemplate || !machines.images.has(template);
}
