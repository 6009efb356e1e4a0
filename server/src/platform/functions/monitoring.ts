/** Reads logs and metrics of a function. */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { Histogram } from "../metrics/histogram.ts";
import { metricsOf, periodBegin } from "../metrics/request-metrics.ts";
import type { Period } from "../metrics/periods.ts";
import { minutesOf } from "../instances/minutes.ts";
import { getFunction } from "./functions.ts";
import type { FunctionParts } from "./parts.ts";
import { type FunctionLogLine, type FunctionLogs, type FunctionMetrics, toLine } from "./schema.ts";

type Rings = Pick<FunctionParts, "ring">;

export async function readLogs(
  app: Pick<App, "db">,
  parts: Rings,
  actor: Actor,
  id: string,
  count: number,
): Promise<FunctionLogs> {
  const row = await getFunction(app, actor, id);
  const { lines, truncated } = await parts.ring(row.id).tail(count);
  return { lines: lines.map(toLine), truncated };
}

/** Yields the last `count` lines, or all lines after a given line number. After these lines, yields new lines. */
export async function followLogs(
  app: Pick<App, "db">,
  parts: Rings,
  actor: Actor,
  { id, count, after }: { id: string; count: number; after: number | null },
): Promise<(signal: AbortSignal) => AsyncIterable<{ id: number; data: FunctionLogLine }>> {
  const row = await getFunction(app, actor, id);
  const ring = parts.ring(row.id);
  const from = after ?? Math.max(0, ((await ring.tail(count)).lines[0]?.n ?? 1) - 1);
  return async function* (signal) {
    for await (const line of ring.follow(from, signal)) yield { id: line.n, data: toLine(line) };
  };
}

export async function functionMetrics(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  id: string,
  period: Period,
): Promise<FunctionMetrics> {
  const row = await getFunction(app, actor, id);
  const minutes = await minutesOf(app.db, row.id, periodBegin(app, period));
  const wakes = new Histogram();
  for (const minute of minutes) wakes.addBytes(minute.wakes);
  return {
    ...metricsOf(app, period, minutes),
    cold_starts: minutes.reduce((sum, { cold_starts }) => sum + cold_starts, 0),
    p50_wake_ms: wakes.percentile(50),
  };
}
