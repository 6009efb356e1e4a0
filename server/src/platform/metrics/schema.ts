/** The wire of request metrics and of an app's health. */
import { z } from "zod";
import { periodNames } from "./request-metrics.ts";

export const MetricsParams = z.strictObject({ project_id: z.guid() });

export const MetricsQuery = z.strictObject({
  period: z.enum(periodNames).default("1h"),
  environment_id: z.guid().optional().describe("Production where absent."),
});

export const HealthQuery = z.strictObject({
  environment_id: z.guid().optional().describe("Environment of the app. Default: production. Extension."),
});

const latencies = {
  p50_ms: z.number().nullable(),
  p95_ms: z.number().nullable(),
  p99_ms: z.number().nullable(),
};

export const RequestMetrics = z
  .object({
    period: z.enum(periodNames),
    requests: z.int(),
    requests_per_minute: z.number(),
    error_rate: z.number().nullable().describe("0 to 1: answers of 500 and above. Null where nobody came."),
    ...latencies,
    series: z
      .array(
        z.object({
          t: z.iso.datetime().describe("When it begins."),
          requests: z.int(),
          errors: z.int(),
          ...latencies,
        }),
      )
      .describe("The oldest first: by the minute, of `6h` by five and of `24h` by fifteen."),
  })
  .meta({ id: "RequestMetrics" });
export type RequestMetrics = z.output<typeof RequestMetrics>;

export const AppHealth = z
  .object({
    status: z.enum(["healthy", "degraded", "down", "asleep", "unknown"]),
    source: z
      .enum(["traffic", "deployment"])
      .describe("The last five minutes' answers, or the last deployment where nobody came."),
    error_rate: z.number().nullable(),
    checked_at: z.iso.datetime(),
  })
  .meta({ id: "AppHealth" });
export type AppHealth = z.output<typeof AppHealth>;
