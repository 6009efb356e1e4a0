/**
 * Agents as workers: what their configs grant them on the platform and the sandboxes of their own account, as tools.
 * This folder owns which operations those are, and how one is carried out: by a request to the server's own API, with
 * a token of the run's own, so that who it is, what it may, what fits, what the plan allows and what the audit log
 * says is decided where it always is. It promises that nobody gives an agent what they do not have; that a token is
 * in memory alone and dies with its run; and that no secret which an operation answers once gets to a model.
 */
import type { Scope } from "#accounts/roles.ts";

/** What a tool does, read from its operation's row. */
export interface Operation {
  /** As a model calls it. */
  name: string;
  description: string;
  /** JSON Schema of an object: the operation's path, query and body side by side. */
  parameters: Record<string, unknown>;
  scope: Scope;
  isRead: boolean;
  /** Throws `UnfitArguments`. */
  request(values: Readonly<Record<string, unknown>>): ApiRequest;
}

export interface ApiRequest {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** With its query. */
  path: string;
  /** JSON; undefined where there is none. */
  body: string | undefined;
}

export interface ApiAnswer {
  status: number;
  /** Secrets that are answered once are blank. */
  text: string;
}

/** The server's own API, as `main` puts it together. */
export interface OwnApi {
  operations: readonly Operation[];
  send(
    request: ApiRequest,
    options: { token: string; headers: Readonly<Record<string, string>>; signal: AbortSignal },
  ): Promise<ApiAnswer>;
}

/** What can't be a request: its message is for the model. */
export class UnfitArguments extends Error {
  override readonly name = "UnfitArguments";
}
