/** Why a deployment ends before it is live. */
import { BuildFailed } from "#builds/app-images.ts";
import { DomainError } from "#lib/errors.ts";
import { AppUnhealthy } from "#platform/apps/errors.ts";

/** A reason to end a deployment that its owner may read. */
export class DeploymentFailed extends Error {}
/** Somebody wants it ended. */
export class Cancelled extends Error {}
/** Its project or environment is gone. */
export class Dropped extends Error {}
/** Thrown when the server stops or the workspace is suspended. The deployment resumes later. */
export class Interrupted extends Error {}

const readable = [DomainError, DeploymentFailed, BuildFailed, AppUnhealthy];

/** As its owner may read it; undefined for what is the server's own. */
export function told(error: unknown): string | undefined {
  return readable.some((kind) => error instanceof kind) ? (error as Error).message : undefined;
}

/** A sentence behind a colon. */
export function asClause(sentence: string): string {
  return /^[A-Z][a-z ]/.test(sentence) ? sentence.charAt(0).toLowerCase() + sentence.slice(1) : sentence;
}
