/** Wire schemas of request metrics and of an app's health. */
import { z } from "zod";
import { ProjectId } from "../input/schema.ts";
import { periodNames } from "./periods.ts";

export const MetricsParams = z.strictObject({ project_id: ProjectId });

export const MetricsQuery = z.strictObject({
  period: z.enum(periodNames).default("1h").describe("Period that ends now. Default: `1h`."),
  environment_id: z.guid().optional().describe("Id (UUID) of the environment. Default: production."),
});

export const HealthQuery = z.strictObject({
  environment_id: z.guid().optional().describe("Environment of the app. Default: production. Extension."),
});

const latencies = {
  p50_ms: z.number().nullable().describe("Median latency in milliseconds. Null without requests."),
  p95_ms: z
    .number()
    .nullable()
    .describe("95th percentile of the latency in milliseconds. Null without requests."),
  p99_ms: z
    .number()
    .nullable()
    .describe("99th percentile of the latency in milliseconds. Null without requests."),
};

export const RequestMetrics = z
  .object({
    period: z.enum(periodNames).describe("Period of the metrics, from the request."),
    requests: z.int().describe("Number of requests in the period."),
    requests_per_minute: z.number().describe("Average number of requests per minute over the period."),
    error_rate: z
      .number()
      .nullable()
      .describe("Share of responses with status 500 or above, 0 to 1. Null without requests."),
    ...latencies,
    series: z
      .array(
        z.object({
          t: z.iso.datetime().describe("Start of the interval (UTC)."),
          requests: z.int().describe("Number of requests in this interval."),
          errors: z.int().describe("Number of responses with status 500 or above in this interval."),
          ...latencies,
        }),
      )
      .describe("Intervals, oldest first: 1 minute each, 5 minutes for `6h`, 15 minutes for `24h`."),
  })
  .meta({ id: "RequestMetrics" });
export type RequestMetrics = z.output<typeof RequestMetrics>;

export const AppHealth = z
  .object({
    status: z
      .enum(["healthy", "degraded", "down", "asleep", "unknown"])
      .describe(
        "`degraded`: at least 5 % errors. `down`: at least 50 % errors, or the last deployment failed and none was live before. `unknown`: no deployment went live yet.",
      ),
    source: z
      .enum(["traffic", "deployment"])
      .describe(
        "Basis of `status`. `traffic`: responses of the last five minutes. `deployment`: the last deployment, if there were no requests, or the app is asleep or never went live.",
      ),
    error_rate: z
      .number()
      .nullable()
      .describe(
        "Share of responses with status 500 or above in the last five minutes, 0 to 1. Null unless `source` is `traffic`.",
      ),
    checked_at: z.iso.datetime().describe("Time of this response."),
  })
  .meta({ id: "AppHealth" });
export type AppHealth = z.output<typeof AppHealth>;
