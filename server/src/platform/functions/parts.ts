/** What functions need of those who run them: instances know functions, and not the other way round. */
import type { LogRing } from "#machines/host/log-rings.ts";
import type { VersionRow } from "./store.ts";

/** A request of the server's own. */
export interface Asked {
  method: string;
  /** With its query. */
  path: string;
  headers: Record<string, string>;
  body: Buffer;
}

export interface Answered {
  status: number;
  headers: Record<string, string>;
  body: Buffer;
  durationMs: number;
  /** It waited for a start from nothing; for a wake of whatever kind, what that took. */
  coldStart: boolean;
  wakeMs: number | null;
}

export interface FunctionParts {
  /**
   * One instance of a built version, kept as its first once that is live. Fails with `HandlerFailed`, whose message is
   * for the owner. `lock`: what its installer resolved, as it stands in the image.
   */
  prove(version: VersionRow, signal: AbortSignal): Promise<{ lock: string | null }>;
  /** After the commit that made another version live. */
  switched(functionId: string): Promise<void>;
  /** Name, auth, variables or limits changed: the first two at once, the rest at each instance's next start. */
  changed(functionId: string): Promise<void>;
  /** All instances end, and nothing answers for it any more; once more does nothing. */
  stop(functionId: string): Promise<void>;
  /** Whoever asks may see the function. */
  invoke(functionId: string, asked: Asked, signal: AbortSignal): Promise<Answered>;
  /** What it said. */
  ring(functionId: string): LogRing;
  /** No instance runs: frozen, asleep or none. */
  isIdle(functionId: string): boolean;
}
