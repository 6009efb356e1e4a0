/**
 * An app's health: from the responses of the last minutes or, without requests, from the result of the last deployment.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { getEnvironment } from "../environments/environments.ts";
import { minuteMs } from "./recorder.ts";
import { currentMinute, errorRate, sumOf } from "./request-metrics.ts";
import type { AppHealth } from "./schema.ts";
import { findLastOutcome, readMinutes } from "./store.ts";

type Needs = Pick<App, "db" | "clock">;

/** Minutes whose requests count. */
const lookBackMinutes = 5;
/** Fractions of failed responses: visitors notice the first, and the second fails most of them. */
const degradedFrom = 0.05;
const downFrom = 0.5;

/** Returns the health of an environment's app. Default: production. */
export async function appHealth(
  app: Needs,
  actor: Actor,
  projectId: string,
  environmentId?: string,
): Promise<AppHealth> {
  const { environment } = await getEnvironment(app, actor, projectId, environmentId);
  const checked_at = app.clock.now().toISOString();
  if (environment.asleep_since !== null) {
    return { status: "asleep", source: "deployment", error_rate: null, checked_at };
  }
  const from = new Date(currentMinute(app) - (lookBackMinutes - 1) * minuteMs);
  const error_rate = errorRate(sumOf(await readMinutes(app.db, environment.id, from)));
  // Requests to an app that was never live got an error page of the server, so they do not count.
  if (error_rate !== null && environment.live_deployment_id !== null) {
    return { status: byTraffic(error_rate), source: "traffic", error_rate, checked_at };
  }
  if (environment.live_deployment_id !== null) {
    return { status: "healthy", source: "deployment", error_rate: null, checked_at };
  }
  const last = await findLastOutcome(app.db, environment.id);
  return {
    status: last === "failed" ? "down" : "unknown",
    source: "deployment",
    error_rate: null,
    checked_at,
  };
}

function byTraffic(errors: number): "healthy" | "degraded" | "down" {
  if (errors >= downFrom) return "down";
  return errors >= degradedFrom ? "degraded" : "healthy";
}
