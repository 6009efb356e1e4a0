/** Host names of a sandbox's ports. */
import type { SandboxTier } from "#accounts/roles.ts";
import { tierLimits } from "#accounts/plans.ts";
import type { Config } from "#config.ts";
import type { SandboxesTable } from "../sandboxes/tables.ts";

type Exposing = Pick<SandboxesTable, "id" | "status" | "network"> & { sandbox_tier: SandboxTier };

/** Returns the part of the host name that all ports of a sandbox share. Null if the sandbox's ports are not served. */
export function hostBase({ previewDomain }: Pick<Config, "previewDomain">, row: Exposing): string | null {
  return canExpose(row) && row.status !== "terminated" ? `${nameOf(row.id)}.sbx.${previewDomain}` : null;
}

export function canExpose({ network, sandbox_tier }: Pick<Exposing, "network" | "sandbox_tier">): boolean {
  return network !== "off" && tierLimits[sandbox_tier].canExposePorts;
}

const prefix = "sbx_";

function nameOf(id: string): string {
  return id.slice(prefix.length).toLowerCase();
}

/** Returns the id of the sandbox that a host name contains. */
export function idOf(name: string): string {
  return prefix + name;
}
