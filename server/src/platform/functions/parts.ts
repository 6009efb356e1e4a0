/** Interface of the running functions. `instances` implements it, so that this folder need not import `instances`. */
import type { LogRing } from "#machines/host/log-rings.ts";
import type { VersionRow } from "./store.ts";

/** Request that the server sends to a function. */
export interface FunctionRequest {
  method: string;
  /** Path with the query string. */
  path: string;
  headers: Record<string, string>;
  body: Buffer;
}

export interface FunctionResponse {
  status: number;
  headers: Record<string, string>;
  body: Buffer;
  durationMs: number;
  /** `coldStart`: the request waited for a new instance. `wakeMs`: milliseconds that a wake of any kind took. */
  coldStart: boolean;
  wakeMs: number | null;
}

export interface FunctionParts {
  /**
   * Starts an instance of a built version. The instance is the first of the version once the version is live. Resolves
   * to the installer's lock in the image. Rejects with `HandlerFailed`, whose message is for the owner.
   */
  prove(version: VersionRow, signal: AbortSignal): Promise<{ lock: string | null }>;
  /** Called after the commit that made another version live. */
  switched(functionId: string): Promise<void>;
  /**
   * Called after a change of name, auth, variables or limits. Name and auth apply at once, the other fields at the next
   * start of an instance.
   */
  changed(functionId: string): Promise<void>;
  /** Ends all instances of the function, and refuses its requests from now on. Safe to repeat. */
  stop(functionId: string): Promise<void>;
  /** Sends a request to the function. The caller has checked access to the function. */
  invoke(functionId: string, asked: FunctionRequest, signal: AbortSignal): Promise<FunctionResponse>;
  /** Returns the log of the function. */
  ring(functionId: string): LogRing;
  /** True if no instance runs: every instance is frozen or stored, or there is none. */
  isIdle(functionId: string): boolean;
}
