/** What functions need of those who run them: instances know functions, and not the other way round. */
import type { VersionRow } from "./store.ts";

export interface FunctionParts {
  /**
   * One instance of a built version, kept as its first once that is live. Fails with an error named `HandlerFailed`,
   * whose message is for the owner. `lock`: what its installer resolved, as it stands in the image.
   */
  prove(version: VersionRow, signal: AbortSignal): Promise<{ lock: string | null }>;
  /** After the commit that made another version live. */
  switched(functionId: string): Promise<void>;
  /** Auth, variables or limits changed: auth at once, the rest at each instance's next start. */
  changed(functionId: string): Promise<void>;
  /** All instances end, and nothing answers for it any more; once more does nothing. */
  stop(functionId: string): Promise<void>;
  /** No instance runs: frozen, asleep or none. */
  isIdle(functionId: string): boolean;
}

/** Where nothing runs. */
export const noInstances: FunctionParts = {
  prove: async () => ({ lock: null }),
  switched: async () => {},
  changed: async () => {},
  stop: async () => {},
  isIdle: () => true,
};
