/** Errors that end a deployment before it is live. */
import { BuildFailed } from "#builds/app-images.ts";
import { DomainError } from "#lib/errors.ts";
import { AppUnhealthy } from "#platform/apps/errors.ts";

/** Thrown for a failure whose message the owner may read. */
export class DeploymentFailed extends Error {}
/** Thrown when a user cancelled the deployment. */
export class DeploymentCancelled extends Error {}
/** Thrown when the project or the environment of the deployment was deleted. */
export class DeploymentTargetDeleted extends Error {}
/** Thrown when the server stops or the workspace is suspended. The deployment is resumed later. */
export class DeploymentInterrupted extends Error {}

const readable = [DomainError, DeploymentFailed, BuildFailed, AppUnhealthy];

/** Returns the error's message if the owner may read it; undefined for internal errors. */
export function ownerMessage(error: unknown): string | undefined {
  return readable.some((kind) => error instanceof kind) ? (error as Error).message : undefined;
}

/** Returns a sentence as a clause that can follow a colon. */
export function asClause(sentence: string): string {
  return /^[A-Z][a-z ]/.test(sentence) ? sentence.charAt(0).toLowerCase() + sentence.slice(1) : sentence;
}
