/**
 * How an operation is shown to work. The contract tests refuse, hide and check by themselves; what they cannot know
 * is how to make the thing an operation needs: that is a case, one per operation, under its `operationId`. An
 * operation without a case fails the ledger.
 */
import type { World } from "../world.ts";

export interface Call {
  /** Values of the path's parameters. */
  params?: Readonly<Record<string, string>>;
  /** Already encoded, without the question mark. */
  query?: string;
  body?: unknown;
  /** For who signs a request in place of showing a token. */
  headers?: Readonly<Record<string, string>>;
}

export interface Case {
  /** Makes what the call needs, as `world.owner`, and says how to call it so that it succeeds. */
  success: (world: World) => Promise<Call> | Call;
  /** Where it is not the route's usual one. */
  status?: number;
  /**
   * The same path with a thing that does not exist. A stranger who makes the successful call must be answered exactly
   * as the owner is who asks for this. Absent where a path names no thing of anybody's.
   */
  unknown?: Readonly<Record<string, string>>;
  /** Its path names no thing that anybody could own. */
  isOwnerless?: boolean;
  /** Fields of the body that are not replaced by strange values: what they say would be run on this very host. */
  keeps?: readonly string[];
  /** Its body may hold any field. */
  isFreeForm?: boolean;
  /** Called without a token, by everyone. */
  isPublic?: boolean;
}

export type Cases = Readonly<Record<string, Case>>;
