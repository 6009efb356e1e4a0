import { networkEnv } from "#machines/environment.ts";
import type { SandboxCreate } from "./schema.ts";

/** What every process in a sandbox finds in its environment beside the caller's own; theirs wins. */
export function sandboxEnv(
  id: string,
  network: SandboxCreate["network"],
  env: Record<string, string>,
): Record<string, string> {
  return { KONTOR_SANDBOX_ID: id, ...networkEnv(network), ...env };
}
