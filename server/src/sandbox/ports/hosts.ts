/** The names under which a sandbox's ports are served. */
import type { SandboxTier } from "#accounts/roles.ts";
import { tierLimits } from "#accounts/plans.ts";
import type { Config } from "#config.ts";
import type { SandboxesTable } from "../sandboxes/tables.ts";

type Exposing = Pick<SandboxesTable, "id" | "status" | "network"> & { sandbox_tier: SandboxTier };

/** Null where no port of it is served. */
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

/** The id of the sandbox that a name is of. */
export function idOf(name: string): string {
  return prefix + name;
}
