/** What functions need of those who run them: instances know functions, and not the other way round. */

export interface FunctionParts {
  /** Auth, variables or limits changed: auth at once, the rest at each instance's next start. */
  changed(functionId: string): Promise<void>;
  /** All instances end, and nothing answers for it any more; once more does nothing. */
  stop(functionId: string): Promise<void>;
  /** No instance runs: frozen, asleep or none. */
  isIdle(functionId: string): boolean;
}

/** Where nothing runs. */
export const noInstances: FunctionParts = {
  changed: async () => {},
  stop: async () => {},
  isIdle: () => true,
};
