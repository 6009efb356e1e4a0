import { networkEnv } from "#machines/placement/environment.ts";
import type { SandboxCreate } from "../schema.ts";

/** A label of at most 63 characters that a shell prompt shows. */
export function hostnameOf(id: string): string {
  return id.replace("_", "-");
}

/** What every process in a sandbox finds in its environment beside the caller's own; theirs wins. */
export function sandboxEnv(
  id: string,
  network: SandboxCreate["network"],
  env: Record<string, string>,
): Record<string, string> {
  return { KONTOR_SANDBOX_ID: id, ...networkEnv(network), ...env };
}

/** What the caller gave of it: everything that is not there by itself. */
export function ownEnv(env: Record<string, string>): Record<string, string> {
  const ours: Record<string, string> = sandboxEnv(env["KONTOR_SANDBOX_ID"] ?? "", "restricted", {});
  return Object.fromEntries(Object.entries(env).filter(([name, value]) => ours[name] !== value));
}
