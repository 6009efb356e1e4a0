/** States and steps of a deployment. The server's functions, the API document and the console share them. */
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

/**
 * Names of all steps, in order. A deployment of a commit begins with `clone`, one of an image with `pull`. The scan
 * runs in parallel, and no step waits for it.
 */
export const stepNames = [
  "pull",
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

/** Names of the steps of a deployment, by their position in the row. */
export const stepsOf = {
  commit: stepNames.filter((name) => name !== "pull"),
  image: stepNames.filter((name) => name !== "clone"),
} as const;

/** Returns the position of a step in the row. `pull` and `clone` share the first position. */
export function stepPosition(name: StepName): number {
  return name === "pull" ? 0 : stepsOf.commit.indexOf(name);
}

/** Steps that a deployment of an image skips. Such an image has no repository and no recipe. */
const unused: ReadonlySet<StepName> = new Set(["detect", "build"]);

export const stepStatuses = ["pending", "running", "succeeded", "failed", "skipped"] as const;

/** Beginnings of a failed step's error. */
export const failures: Readonly<Record<StepName, string>> = {
  pull: "The image could not be pulled",
  clone: "The repository could not be fetched",
  detect: "The repository could not be made into an image",
  build: "The build failed",
  scan: "The scan failed",
  release: "The app could not be started",
  health: "The app did not become healthy",
  route: "The app did not respond at its address",
};

const underWay: ReadonlySet<DeploymentStatus> = new Set(["queued", "building", "deploying"]);

export function isOver(status: DeploymentStatus): boolean {
  return !underWay.has(status);
}

export function newSteps({ image_reference }: { image_reference?: string | null | undefined }): Step[] {
  const source = image_reference ? "image" : "commit";
  return stepsOf[source].map((name) => ({
    name,
    status: source === "image" && unused.has(name) ? "skipped" : "pending",
    started_at: null,
    finished_at: null,
    error: null,
  }));
}
