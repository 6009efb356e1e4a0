/** Reasons to end a deployment before it is live. */
import { BuildFailed } from "#builds/app-images.ts";
import { DomainError } from "#lib/errors.ts";
import { AppUnhealthy } from "#platform/apps/errors.ts";

/** Ends a deployment for a reason that its owner may read. */
export class DeploymentFailed extends Error {}
/** A user cancelled the deployment. */
export class DeploymentCancelled extends Error {}
/** The project or the environment of the deployment was deleted. */
export class DeploymentTargetDeleted extends Error {}
/** Thrown when the server stops or the workspace is suspended. The deployment resumes later. */
export class DeploymentInterrupted extends Error {}

const readable = [DomainError, DeploymentFailed, BuildFailed, AppUnhealthy];

/** Returns the message if the owner may read it. Undefined for internal errors. */
export function ownerMessage(error: unknown): string | undefined {
  return readable.some((kind) => error instanceof kind) ? (error as Error).message : undefined;
}

/** Turns a sentence into a clause that follows a colon. */
export function asClause(sentence: string): string {
  return /^[A-Z][a-z ]/.test(sentence) ? sentence.charAt(0).toLowerCase() + sentence.slice(1) : sentence;
}
