/** Reads usage, health and logs of an environment's app. */
import type { Actor } from "#accounts/actor.ts";
import { getEnvironment } from "../environments/environments.ts";
import type { Apps } from "./apps.ts";
import type { Running } from "./running/app-instance.ts";
import { type ProcessHealth, type AppLogLine, type AppLogs, type AppStats, toLine } from "./schema.ts";
import { sleep } from "./running/sleep.ts";
import { wake } from "./running/wake.ts";

/** Ids of a request that select an app. */
export interface AppSelector {
  actor: Actor;
  projectId: string;
  /** Id of the environment; undefined selects production. */
  environmentId: string | undefined;
}

export async function readStats(apps: Apps, which: AppSelector): Promise<AppStats> {
  return statsOf(apps, await idOf(apps, which));
}

export function statsOf(apps: Apps, environmentId: string): AppStats {
  const running = apps.serving(environmentId);
  const visitors = running?.traffic ?? { rxBytes: 0, txBytes: 0 };
  const stats = running?.machine == null ? undefined : apps.app.machines.sampler.latest(running.machine);
  if (!running || !stats) {
    return {
      cpu_percent: 0,
      cpu_limit: running?.row.run.size.cpu ?? 0,
      memory_bytes: 0,
      memory_limit_bytes: running?.limitBytes ?? 0,
      network_rx_bytes: visitors.rxBytes,
      network_tx_bytes: visitors.txBytes,
      sampled_at: null,
    };
  }
  const sample = apps.app.machines.sampler.samples(running.machine ?? "").at(-1);
  return {
    cpu_percent: Math.round((sample?.usageCores ?? 0) * 10_000) / 100,
    cpu_limit: running.row.run.size.cpu,
    memory_bytes: stats.memoryBytes,
    memory_limit_bytes: running.limitBytes,
    network_rx_bytes: visitors.rxBytes + since(stats.networkRxBytes, running.carried?.rxBytes),
    network_tx_bytes: visitors.txBytes + since(stats.networkTxBytes, running.carried?.txBytes),
    sampled_at: stats.at.toISOString(),
  };
}

export async function readHealth(apps: Apps, which: AppSelector): Promise<ProcessHealth> {
  return healthOf(apps, await idOf(apps, which));
}

function healthOf(apps: Apps, environmentId: string): ProcessHealth {
  const running = apps.serving(environmentId);
  const status = statusOf(running, apps.of(environmentId));
  const startedAt = running?.command == null ? null : running.row.started_at;
  const uptimeMs = startedAt ? apps.app.clock.now().getTime() - startedAt.getTime() : 0;
  return {
    status,
    uptime_seconds: Math.max(0, Math.floor(uptimeMs / 1000)),
    restart_count: running?.row.restart_count ?? 0,
    last_exit_code: running?.row.last_exit_code ?? null,
  };
}

function statusOf(running: Running | undefined, all: readonly Running[]): ProcessHealth["status"] {
  if (!running) return all.some(({ state }) => state === "starting") ? "starting" : "stopped";
  if (running.state === "asleep") return "asleep";
  if (running.isUp) return "running";
  return running.row.crashed ? "crashed" : "starting";
}

export async function readLogs(apps: Apps, which: AppSelector, count: number): Promise<AppLogs> {
  const { lines, truncated } = await apps.ring(await idOf(apps, which)).tail(count);
  return { lines: lines.map(toLine), truncated };
}

/** Yields the last `count` lines, or all lines after a given line number. After these lines, yields new lines. */
export async function followLogs(
  apps: Apps,
  which: AppSelector,
  { count, after }: { count: number; after: number | null },
): Promise<(signal: AbortSignal) => AsyncIterable<{ id: number; data: AppLogLine }>> {
  const ring = apps.ring(await idOf(apps, which));
  const from = after ?? Math.max(0, ((await ring.tail(count)).lines[0]?.n ?? 1) - 1);
  return async function* (signal) {
    for await (const line of ring.follow(from, signal)) yield { id: line.n, data: toLine(line) };
  };
}

export async function putToSleep(apps: Apps, which: AppSelector): Promise<ProcessHealth> {
  const { project, environment } = await find(apps, which);
  const context = { actor: which.actor, workspaceId: project.workspace_id, label: environment.host_label };
  await sleep(apps, environment.id, context);
  return healthOf(apps, environment.id);
}

export async function wakeUp(apps: Apps, which: AppSelector): Promise<ProcessHealth> {
  const { project, environment } = await find(apps, which);
  const context = { actor: which.actor, workspaceId: project.workspace_id, label: environment.host_label };
  await wake(apps, environment.id, context);
  return healthOf(apps, environment.id);
}

function find(apps: Apps, { actor, projectId, environmentId }: AppSelector) {
  return getEnvironment(apps.app, actor, projectId, environmentId);
}

async function idOf(apps: Apps, which: AppSelector): Promise<string> {
  return (await find(apps, which)).environment.id;
}

function since(bytes: number, first: number | undefined): number {
  return first === undefined ? 0 : Math.max(0, bytes - first);
}
