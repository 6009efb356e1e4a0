/**
 * Recent request metrics of an environment: number of responses, server errors (500 and above) and latency. Minutes are
 * added, never averaged. The current minute is incomplete and lacks the last second.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { getEnvironment } from "../environments/environments.ts";
import { Histogram } from "./histogram.ts";
import { minuteMs } from "./recorder.ts";
import { type Period, periods } from "./periods.ts";
import type { RequestMetrics } from "./schema.ts";
import { type MinuteRow, readMinutes } from "./store.ts";

type Needs = Pick<App, "db" | "clock">;
type Counts = Pick<MinuteRow, "requests" | "errors" | "latencies">;

export async function requestMetrics(
  app: Needs,
  actor: Actor,
  projectId: string,
  { period, environment_id }: { period: Period; environment_id?: string | undefined },
): Promise<RequestMetrics> {
  const { environment } = await getEnvironment(app, actor, projectId, environment_id);
  const rows = await readMinutes(app.db, environment.id, periodBegin(app, period));
  return metricsOf(app, period, rows);
}

/** Returns the start of the first minute of a period that ends now. */
export function periodBegin(app: Pick<App, "clock">, period: Period): Date {
  return new Date(currentMinute(app) - (periods[period].minutes - 1) * minuteMs);
}

/** Returns the metrics of the minutes since `periodBegin`. */
export function metricsOf(
  app: Pick<App, "clock">,
  period: Period,
  rows: readonly (Counts & { minute: Date })[],
): RequestMetrics {
  const { minutes, step } = periods[period];
  const begin = periodBegin(app, period).getTime();
  const points = Map.groupBy(rows, ({ minute }) =>
    Math.floor((minute.getTime() - begin) / (step * minuteMs)),
  );
  const { requests, errors, ...latencies } = sumOf(rows);
  return {
    period,
    requests,
    requests_per_minute: Math.round((requests / minutes) * 100) / 100,
    error_rate: errorRate({ requests, errors }),
    ...latencies,
    series: Array.from({ length: minutes / step }, (_, at) => ({
      t: new Date(begin + at * step * minuteMs).toISOString(),
      ...sumOf(points.get(at) ?? []),
    })),
  };
}

export function currentMinute({ clock }: Pick<App, "clock">): number {
  return Math.floor(clock.now().getTime() / minuteMs) * minuteMs;
}

export function sumOf(rows: readonly Counts[]) {
  const latencies = new Histogram();
  let [requests, errors] = [0, 0];
  for (const row of rows) {
    requests += row.requests;
    errors += row.errors;
    latencies.addBytes(row.latencies);
  }
  return {
    requests,
    errors,
    p50_ms: latencies.percentile(50),
    p95_ms: latencies.percentile(95),
    p99_ms: latencies.percentile(99),
  };
}

/** Returns the fraction of failed responses; null without responses. */
export function errorRate({ requests, errors }: { requests: number; errors: number }): number | null {
  return requests === 0 ? null : Math.round((errors / requests) * 10_000) / 10_000;
}
