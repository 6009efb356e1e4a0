/** The three sizes of a sandbox, with the resources of each machine. */
import type { SandboxTier } from "#accounts/roles.ts";
import type { Config } from "#config.ts";
import type { Shape } from "#machines/placement/shape.ts";

export const sizes = {
  small: { cpu: 1, memoryMb: 1024 },
  medium: { cpu: 2, memoryMb: 4096 },
  large: { cpu: 4, memoryMb: 8192 },
} as const;
export type Size = keyof typeof sizes;
export const sizeNames = Object.keys(sizes) as [Size, ...Size[]];

/** Maximum of processes in a machine: stops a fork bomb, and allows a build with a few hundred compilers. */
const maxProcesses = 1024;

export function shapeOf(template: string, size: Size, diskGb: number): Shape {
  return {
    poolKey: `${template}/${size}`,
    template,
    resources: {
      vcpus: sizes[size].cpu,
      memoryBytes: sizes[size].memoryMb * 1024 ** 2,
      diskBytes: diskGb * 1024 ** 3,
      maxProcesses,
    },
  };
}

/** Returns the number of sandboxes that a workspace may have at once, running or paused. */
export function maxConcurrent(config: Config, tier: SandboxTier): number {
  return {
    free: config.maxSandboxesFree,
    payg: config.maxSandboxesPayg,
    enterprise: config.maxSandboxesEnterprise,
  }[tier];
}
