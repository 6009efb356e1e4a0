/** What a config's `vm` comes to: the sandbox that is made of it. */
import type { Actor } from "#accounts/actor.ts";
import type { SandboxTier } from "#accounts/roles.ts";
import { tierLimits } from "#accounts/plans.ts";
import { SandboxCreate } from "#sandbox/sandboxes/schema.ts";
import type { AgentConfig } from "../agents/config.ts";
import type { ToolUser } from "../tools/tool.ts";

export type Vm = NonNullable<AgentConfig["vm"]>;

/** What a sandbox lives longer than the time after which it is parked: it is to be parked, and not to run out. */
const slackSeconds = 900;

export function vmOf({ config }: Pick<ToolUser, "config">): Vm {
  if (!config.vm?.enabled) throw new Error("only a version with a machine has its tools");
  return config.vm;
}

/** Of the sandbox, counted from its last use. As long as the tier has, where that is less. */
export function lifetimeSeconds(
  { vm }: Pick<AgentConfig, "vm">,
  { workspaces }: Pick<Actor, "workspaces">,
): number {
  return lifetime(vm, workspaces[0]?.sandboxTier ?? "free");
}

function lifetime(vm: AgentConfig["vm"], tier: SandboxTier): number {
  return Math.min(tierLimits[tier].maxTimeoutSeconds, (vm?.park_after_seconds ?? 0) + slackSeconds);
}

/** As a create has it. `labels` say whose it is. */
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
    // What an agent serves is its owner's to show: nobody comes to it without the sandbox's token.
    preview_auth: true,
    metadata: labels,
  });
}
