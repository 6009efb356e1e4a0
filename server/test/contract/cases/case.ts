/**
 * A case shows that an operation works. The contract tests check refusals and hiding by themselves, but they cannot
 * create the resources that an operation needs. Each operation therefore has one case under its `operationId`; an
 * operation without a case fails a test.
 */
import type { World } from "../world.ts";

export interface Call {
  /** Values of the path's parameters. */
  params?: Readonly<Record<string, string>>;
  /** The query, already encoded, without the question mark. */
  query?: string;
  body?: unknown;
  /** Headers of a request that has a signature instead of a token. */
  headers?: Readonly<Record<string, string>>;
}

export interface Case {
  /** Creates the resources of the call, as `world.owner`, and returns a call that succeeds. */
  success: (world: World) => Promise<Call> | Call;
  /** Status of the success. Default: the usual status of the route. */
  status?: number;
  /**
   * The same path with a resource that does not exist. A stranger's call must get exactly the response that the owner
   * gets for this path. Absent if the path names no owned resource.
   */
  unknown?: Readonly<Record<string, string>>;
  /** True if the path names no owned resource. */
  isOwnerless?: boolean;
  /** Fields of the body that hostile values do not replace, because their values would run on this host. */
  keeps?: readonly string[];
  /** True if the body may have any field. */
  isFreeForm?: boolean;
  /** True if the call needs no token. */
  isPublic?: boolean;
}

export type Cases = Readonly<Record<string, Case>>;
