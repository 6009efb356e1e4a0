/**
 * Metrics for Prometheus. Any folder can create a `Gauge` or `Histogram` in prom-client's global registry, and the
 * metric appears here without an import.
 */
import { collectDefaultMetrics, Histogram, register } from "prom-client";

/**
 * Upper bounds of the buckets of request durations, from 1 ms to 60 s. An authenticated read takes 1 to 5 ms, a cold
 * create a few hundred, a buffered exec up to minutes.
 */
const bucketsSeconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];

const name = "kontor_http_request_duration_seconds";

function requestHistogram(): Histogram<"api" | "method" | "route" | "status"> {
  const existing = register.getSingleMetric(name);
  if (existing) return existing as Histogram<"api" | "method" | "route" | "status">;
  collectDefaultMetrics();
  return new Histogram({
    name,
    help: "Time from the request's headers to the end of its response, by route and status.",
    labelNames: ["api", "method", "route", "status"],
    buckets: bucketsSeconds,
  });
}

export interface RequestFacts {
  api: string;
  method: string;
  route: string;
  status: number;
  seconds: number;
}

/** Starts the default metrics of the process once. Returns a function that counts a request. */
export function startMetrics(): (facts: RequestFacts) => void {
  const histogram = requestHistogram();
  return ({ api, method, route, status, seconds }) =>
    histogram.observe({ api, method, route, status }, seconds);
}

export const renderMetrics = async (): Promise<{ contentType: string; text: string }> => ({
  contentType: register.contentType,
  text: await register.metrics(),
});
