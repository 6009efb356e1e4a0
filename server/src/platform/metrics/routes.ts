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
    summary: "Get an app's request metrics",
    description:
      "Returns the number of requests and errors, and their latency, as measured at the server's ingress. Latency runs from the request's headers to the response's headers, and includes the wake of a sleeping app. Percentiles are accurate to 1.6 %.",
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
    summary: "Get an app's health",
    description: "Rates the responses of the last five minutes. Without requests, rates the last deployment.",
    params: MetricsParams,
    query: HealthQuery,
    responses: { 200: AppHealth },
    errors: [projectNotFound, environmentNotFound],
    handler: ({ actor, params, query }) => appHealth(app, actor, params.project_id, query.environment_id),
  }),
];
