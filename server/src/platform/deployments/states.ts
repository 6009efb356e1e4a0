/** A deployment's states and steps: used by the verbs, written into OpenAPI, read by the console. */
import type { DeploymentStatus, StepRecord } from "./tables.ts";

export const statuses = [
  "queued",
  "building",
  "deploying",
  "live",
  "failed",
  "cancelled",
  "superseded",
] as const satisfies readonly DeploymentStatus[];

/** In the order they are taken. The scan is beside the others: nothing waits for it. */
export const stepNames = [
  "clone",
  "detect",
  "build",
  "scan",
  "release",
  "health",
  "route",
] as const satisfies readonly StepRecord["name"][];
export type Step = StepRecord;
export type StepName = Step["name"];

export const stepStatuses = ["pending", "running", "succeeded", "failed", "skipped"] as const;

/** What a failure is called by where it is told in a sentence. */
export const failures: Readonly<Record<StepName, string>> = {
  clone: "The repository could not be fetched",
  detect: "The repository could not be made into an image",
  build: "The build failed",
  scan: "The scan failed",
  release: "The app could not be started",
  health: "The app did not become healthy",
  route: "The app did not answer at its address",
};

const underWay: ReadonlySet<DeploymentStatus> = new Set(["queued", "building", "deploying"]);

export function isOver(status: DeploymentStatus): boolean {
  return !underWay.has(status);
}

export function newSteps(): Step[] {
  return stepNames.map((name) => ({
    name,
    status: "pending",
    started_at: null,
    finished_at: null,
    error: null,
  }));
}
