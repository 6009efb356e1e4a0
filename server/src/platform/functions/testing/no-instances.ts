/** Fake instances for tests of the records: no process runs, and every proof succeeds. */
import type { FunctionParts } from "../parts.ts";

const none = () => {
  throw new Error("nothing runs here");
};

export const noInstances: FunctionParts = {
  prove: async () => ({ lock: null }),
  switched: async () => {},
  changed: async () => {},
  stop: async () => {},
  invoke: none,
  ring: none,
  isIdle: () => true,
};
