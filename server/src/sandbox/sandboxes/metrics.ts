import type { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { sampleIntervalSeconds, windowSeconds } from "#machines/host/sampler.ts";
import { getSandbox } from "./sandboxes.ts";
import type { Metrics } from "./schema.ts";
import type { SandboxRow } from "./store.ts";

/**
 * Returns metrics in every state, and never a 409: a sandbox that does not run has null values, no samples, and its
 * lifetime.
 */
export async function metrics(
  app: Pick<App, "config" | "db" | "machines" | "clock">,
  actor: Actor,
  id: string,
  since: number | undefined,
): Promise<z.output<typeof Metrics>> {
  const row = await getSandbox(app, actor, id);
  const now = app.clock.now();
  const machine = row.status === "running" ? row.machine_id : null;
  // A short burst may exceed the quota in one second, so the value is capped at the sandbox's cores.
  const samples = (machine ? app.machines.sampler.samples(machine) : []).map((sample) => ({
    ...sample,
    usageCores: Math.min(sample.usageCores, row.cpu),
  }));
  const latest = samples.at(-1);
  const limitBytes = row.memory_mb * 1024 ** 2;
  const diskBytes = app.config.machineDiskGb * 1024 ** 3;
  const taken = machine ? app.machines.sampler.latest(machine)?.diskBytes : undefined;
  return {
    sandbox_id: row.id,
    sandbox_status: row.status,
    as_of: now.toISOString(),
    as_of_unix: unix(now),
    sample_interval_seconds: sampleIntervalSeconds,
    window_seconds: windowSeconds,
    cpu: {
      cores: row.cpu,
      usage_cores: latest ? round(latest.usageCores) : null,
      usage_percent: latest ? percent(latest.usageCores, row.cpu) : null,
    },
    memory: {
      limit_bytes: limitBytes,
      usage_bytes: latest?.memoryBytes ?? null,
      usage_percent: latest ? percent(latest.memoryBytes, limitBytes) : null,
    },
    disk: {
      limit_bytes: diskBytes,
      usage_bytes: taken ?? null,
      usage_percent: taken === undefined ? null : percent(taken, diskBytes),
    },
    lifetime: {
      cpu_seconds: round(row.cpu_seconds + (machine ? await app.machines.cpuSeconds(machine) : 0)),
      gb_seconds: round((row.memory_mb / 1024) * (row.running_seconds + runningNow(row, now))),
    },
    samples: samples
      .filter((sample) => since === undefined || unix(sample.at) > since)
      .map(({ at, usageCores, memoryBytes }) => ({
        t: unix(at),
        cpu_percent: percent(usageCores, row.cpu),
        mem_bytes: memoryBytes,
      })),
  };
}

function runningNow(row: SandboxRow, now: Date): number {
  return row.running_since ? Math.max(0, (now.getTime() - row.running_since.getTime()) / 1000) : 0;
}

function unix(at: Date): number {
  return Math.floor(at.getTime() / 1000);
}

function percent(part: number, whole: number): number {
  return round((part / whole) * 100);
}

function round(value: number): number {
  return Math.round(value * 1000) / 1000;
}
