/**
 * Agents as workers: their configs grant them operations of the Platform and Sandbox APIs as tools, in their own
 * workspace. This folder owns the list of these operations and their execution. A call is a request to the server's
 * own API with a token of the run. So the usual authentication, validation, plan limits and audit log apply. The
 * folder promises:
 * - A publisher grants only scopes that the publisher has.
 * - A token exists in memory only, and is revoked with its run.
 * - A secret in a response reaches no model.
 */
import type { Scope } from "#accounts/roles.ts";

/** A tool, derived from its operation's route. */
export interface Operation {
  /** Name of the tool for models. */
  name: string;
  description: string;
  /** JSON Schema of an object: the operation's path, query and body parameters together. */
  parameters: Record<string, unknown>;
  scope: Scope;
  isRead: boolean;
  /** Builds the request of a call. Throws `UnfitArguments`. */
  request(values: Readonly<Record<string, unknown>>): ApiRequest;
}

export interface ApiRequest {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Path of the request, with its query. */
  path: string;
  /** Body as JSON text. Undefined if the request has no body. */
  body: string | undefined;
}

export interface ApiResponse {
  status: number;
  /** Text of the response. Secrets that the operation returns once are blanked. */
  text: string;
}

/** The server's own API, which `main` passes to the agents. */
export interface OwnApi {
  operations: readonly Operation[];
  send(
    request: ApiRequest,
    options: { token: string; headers: Readonly<Record<string, string>>; signal: AbortSignal },
  ): Promise<ApiResponse>;
}

/** Thrown for arguments that make no valid request. The model gets the message. */
export class UnfitArguments extends Error {
  override readonly name = "UnfitArguments";
}
