import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { environmentNotFound } from "../environments/errors.ts";
import { projectNotFound } from "../projects/errors.ts";
import { appHealth } from "./app-health.ts";
import { requestMetrics } from "./request-metrics.ts";
import { AppHealth, HealthQuery, MetricsParams, MetricsQuery, RequestMetrics } from "./schema.ts";

const common = { api: "platform", tag: "Monitoring", method: "GET", scope: "platform:read" } as const;

export const metricRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    path: "/api/v1/projects/{project_id}/request-metrics",
    operationId: "getRequestMetrics",
    summary: "Requests, errors and latency as visitors met them",
    description:
      "Latency is the time from a request's head to the answer's, as measured where visitors come in; a sleeping app's waking is part of it. Percentiles are off by 1.6 % at most.",
    params: MetricsParams,
    query: MetricsQuery,
    responses: { 200: RequestMetrics },
    errors: [projectNotFound, environmentNotFound],
    handler: ({ actor, params, query }) => requestMetrics(app, actor, params.project_id, query),
  }),
  defineRoute({
    ...common,
    path: "/api/v1/projects/{project_id}/app-health",
    operationId: "getAppHealth",
    summary: "Whether visitors are served",
    params: MetricsParams,
    query: HealthQuery,
    responses: { 200: AppHealth },
    errors: [projectNotFound, environmentNotFound],
    handler: ({ actor, params, query }) => appHealth(app, actor, params.project_id, query.environment_id),
  }),
];
