import { networkEnv } from "#machines/placement/environment.ts";
import type { SandboxCreate } from "../schema.ts";

/** Returns a host name of at most 63 characters, which a shell prompt shows. */
export function hostnameOf(id: string): string {
  return id.replace("_", "-");
}

/** Returns the default environment of every process in a sandbox. The caller's variables override it. */
export function sandboxEnv(
  id: string,
  network: SandboxCreate["network"],
  env: Record<string, string>,
): Record<string, string> {
  return { KONTOR_SANDBOX_ID: id, ...networkEnv(network), ...env };
}

/** Returns the caller's variables, without the default ones. */
export function ownEnv(env: Record<string, string>): Record<string, string> {
  const ours: Record<string, string> = sandboxEnv(env["KONTOR_SANDBOX_ID"] ?? "", "restricted", {});
  return Object.fromEntries(Object.entries(env).filter(([name, value]) => ours[name] !== value));
}
