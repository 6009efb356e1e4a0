/** For tests of what functions are: nothing runs, and whatever is proved is well. */
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
