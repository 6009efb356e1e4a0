/** Interface of the running functions. `instances` implements it, so that this folder does not import `instances`. */
import type { LogRing } from "#machines/host/log-rings.ts";
import type { VersionRow } from "./store.ts";

/** Request of the server to a function. */
export interface FunctionRequest {
  method: string;
  /** Path with its query. */
  path: string;
  headers: Record<string, string>;
  body: Buffer;
}

export interface FunctionResponse {
  status: number;
  headers: Record<string, string>;
  body: Buffer;
  durationMs: number;
  /** `coldStart`: the request waited for a new instance. `wakeMs`: time that a wake of any kind took. */
  coldStart: boolean;
  wakeMs: number | null;
}

export interface FunctionParts {
  /**
   * Starts an instance of a built version, which becomes the first one when the version goes live. Rejects with
   * `HandlerFailed`; its message is for the owner. The returned `lock` is the installer's lock in the image.
   */
  prove(version: VersionRow, signal: AbortSignal): Promise<{ lock: string | null }>;
  /** Called after the commit that made another version live. */
  switched(functionId: string): Promise<void>;
  /**
   * Called after a change of name, auth, variables or limits. Name and auth apply at once, the rest at the next start
   * of an instance.
   */
  changed(functionId: string): Promise<void>;
  /** Ends all instances and stops serving the function. Safe to repeat. */
  stop(functionId: string): Promise<void>;
  /** Sends a request. The caller has checked access to the function. */
  invoke(functionId: string, asked: FunctionRequest, signal: AbortSignal): Promise<FunctionResponse>;
  /** Log of the function. */
  ring(functionId: string): LogRing;
  /** True if no instance runs: all are frozen or stored, or there is none. */
  isIdle(functionId: string): boolean;
}
