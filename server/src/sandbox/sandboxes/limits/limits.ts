import type { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { tierLimits } from "#accounts/plans.ts";
import type { App } from "#app.ts";
import { regionsOf } from "#lib/regions.ts";
import { batchMaxBytes, batchMaxFiles, fileMaxBytes } from "#sandbox/files/limits.ts";
import { webhooksMax } from "#sandbox/webhooks/limits.ts";
import type { Limits } from "../schema.ts";
import { maxConcurrent, sizes } from "./sizes.ts";

/** Returns the limits of the caller's workspace, and the offers of this installation. */
export function limits(app: Pick<App, "config" | "machines">, actor: Actor): z.output<typeof Limits> {
  const tier = actor.workspaces[0]?.sandboxTier ?? "free";
  const allowed = tierLimits[tier];
  return {
    tier,
    sizes: allowed.sizes.map((name) => ({ name, cpu: sizes[name].cpu, memory_mb: sizes[name].memoryMb })),
    max_timeout_seconds: allowed.maxTimeoutSeconds,
    max_concurrent_sandboxes: maxConcurrent(app.config, tier),
    snapshot_cap: allowed.snapshots,
    regions: regionsOf(app.config).map(({ code, name }, index) => ({ code, name, default: index === 0 })),
    default_egress_allowlist: [...app.config.defaultEgressAllowlist],
    metadata_max_keys: 16,
    file_max_bytes: fileMaxBytes,
    batch_max_files: batchMaxFiles,
    batch_max_bytes: batchMaxBytes,
    upload_max_bytes: 512 * 1024 ** 2,
    webhooks_max: webhooksMax,
    volumes_max: allowed.volumes,
    can_expose_ports: allowed.canExposePorts,
    can_build_templates: allowed.canBuildTemplates,
    paused_retention_days: allowed.pausedRetentionDays,
    templates: app.machines.images.status().map(({ name, state, image }) => ({
      name,
      state,
      substituted: image?.substituted ?? false,
      contents: image?.contents ?? {},
    })),
  };
}
