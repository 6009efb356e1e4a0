/** Converts a config's `vm` to a sandbox. */
import type { Actor } from "#accounts/actor.ts";
import type { SandboxTier } from "#accounts/roles.ts";
import { tierLimits } from "#accounts/plans.ts";
import { SandboxCreate } from "#sandbox/sandboxes/schema.ts";
import type { AgentConfig } from "../agents/config.ts";
import type { ToolUser } from "../tools/tool.ts";

export type Vm = NonNullable<AgentConfig["vm"]>;

/** Seconds between parking and the sandbox's expiry, so that an idle machine is parked before it expires. */
const slackSeconds = 900;

export function vmOf({ config }: Pick<ToolUser, "config">): Vm {
  if (!config.vm?.enabled) throw new Error("a version without a machine has no machine tools");
  return config.vm;
}

/** Returns the lifetime of the sandbox after its last use, in seconds. The lifetime is at most the tier's maximum. */
export function lifetimeSeconds(
  { vm }: Pick<AgentConfig, "vm">,
  { workspaces }: Pick<Actor, "workspaces">,
): number {
  return lifetime(vm, workspaces[0]?.sandboxTier ?? "free");
}

function lifetime(vm: AgentConfig["vm"], tier: SandboxTier): number {
  return Math.min(tierLimits[tier].maxTimeoutSeconds, (vm?.park_after_seconds ?? 0) + slackSeconds);
}

/** Returns the input for the creation of the sandbox. `labels` identify the sandbox's session. */
export function sandboxOf(vm: Vm, tier: SandboxTier, labels: Record<string, string>) {
  return SandboxCreate.safeParse({
    template: vm.template,
    size: vm.size,
    network: vm.network,
    ...(vm.network === "restricted" && vm.allow_domains.length > 0
      ? { allow_domains: vm.allow_domains }
      : {}),
    ...(vm.volume === null ? {} : { volume: vm.volume }),
    timeout_seconds: lifetime(vm, tier),
    on_timeout: "pause",
    // A preview is not public: it needs the sandbox's token, because the owner decides whether to publish previews.
    preview_auth: true,
    metadata: labels,
  });
}
